//! The memory of a model's tensors: one mapping, in pages of 2 MiB where the system has them.
//!
//! Every weight is read once for a token, far more than address caches reach: with pages of 4 KiB
//! prototypes of the products lost 15 % with one thread and 8 % with two (a Xeon). In a mapping of its own for
//! each large tensor, small ones and the ends of large ones, an eighth of an E2B, had such pages even so. The
//! file itself cannot be mapped so; hence a copy, which takes the place of the file's pages in memory.

use bytemuck::Pod;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Elements in memory: a vector, or a part of an [`Arena`].
pub struct Buffer<T: Pod>(Memory<T>);

enum Memory<T: Pod> {
    Heap(Vec<T>),
    #[cfg(target_os = "linux")]
    Part(pages::Part<T>),
}

/// Room for tensors, which are given out one behind the other.
pub struct Arena {
    #[cfg(target_os = "linux")]
    pages: pages::Pages,
}

impl Arena {
    /// Room for so many tensors of so many bytes in all; `None` when the system gives none.
    pub fn new(bytes: usize, tensors: usize) -> Option<Self> {
        #[cfg(target_os = "linux")]
        return pages::Pages::zeroed(bytes, tensors).map(|pages| Self { pages });
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (bytes, tensors);
            Some(Self {})
        }
    }

    /// So many elements of zero bits; `None` when there is no room for them.
    pub fn take<T: Pod>(&mut self, elements: usize) -> Option<Buffer<T>> {
        #[cfg(target_os = "linux")]
        return self.pages.take(elements).map(|part| Buffer(Memory::Part(part)));
        #[cfg(not(target_os = "linux"))]
        bytemuck::allocation::try_zeroed_vec(elements).ok().map(Buffer::from)
    }
}

impl<T: Pod> From<Vec<T>> for Buffer<T> {
    fn from(elements: Vec<T>) -> Self {
        Self(Memory::Heap(elements))
    }
}

impl<T: Pod> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Memory::Heap(elements) => elements,
            #[cfg(target_os = "linux")]
            Memory::Part(part) => part.elements(),
        }
    }
}

impl<T: Pod> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Memory::Heap(elements) => elements,
            #[cfg(target_os = "linux")]
            Memory::Part(part) => part.elements_mut(),
        }
    }
}

impl<T: Pod> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        self.to_vec().into()
    }
}

impl<T: Pod + PartialEq> PartialEq for Buffer<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(formatter)
    }
}

#[cfg(target_os = "linux")]
mod pages {
    use bytemuck::Pod;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::ffi::c_void;
    use std::ptr::null_mut;
    use std::sync::Arc;

    /// A large page.
    pub const PAGE: usize = 2 << 20;
    /// Tensors begin at multiples of a cache line, which is more than any element is aligned to.
    const LINE: usize = 64;

    /// A mapping of which parts are given out.
    pub struct Pages {
        mapping: Arc<Mapping>,
        /// The first byte that is given out, a multiple of [`PAGE`], and how many there are.
        first: *mut c_void,
        bytes: usize,
        /// How many of them are given out.
        taken: usize,
    }

    struct Mapping {
        base: *mut c_void,
        bytes: usize,
    }

    /// Elements in a mapping that nobody else was given.
    pub struct Part<T> {
        first: *mut T,
        elements: usize,
        /// Keeps them mapped.
        _mapping: Arc<Mapping>,
    }

    // SAFETY: an address and a length; the memory is reached through parts only.
    unsafe impl Send for Mapping {}
    // SAFETY: as above.
    unsafe impl Sync for Mapping {}
    // SAFETY: the part's memory is its own, and reached through `&self` and `&mut self` only.
    unsafe impl<T: Send> Send for Part<T> {}
    // SAFETY: as above.
    unsafe impl<T: Sync> Sync for Part<T> {}

    impl Pages {
        pub fn zeroed(bytes: usize, tensors: usize) -> Option<Self> {
            let bytes = bytes.checked_add(tensors.checked_mul(LINE)?)?;
            // Whole pages, from the first one on.
            let bytes = bytes.checked_next_multiple_of(PAGE)?;
            let mapped = bytes.checked_add(PAGE)?;
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: a new mapping, at a place of the system's choice.
            let base = unsafe { mmap_anonymous(null_mut(), mapped, access, flags) }.ok()?;
            let mapping = Arc::new(Mapping { base, bytes: mapped });
            let first = base.wrapping_byte_add(base.addr().next_multiple_of(PAGE) - base.addr());
            // A wish; what lies before `first` is never touched and takes no memory.
            // SAFETY: the range lies in the mapping, and the advice changes no content.
            let _ = unsafe { madvise(first, bytes, Advice::LinuxHugepage) };
            Some(Self { mapping, first, bytes, taken: 0 })
        }

        pub fn take<T: Pod>(&mut self, elements: usize) -> Option<Part<T>> {
            const { assert!(align_of::<T>() <= LINE) };
            let begin = self.taken.checked_next_multiple_of(LINE)?;
            let end = begin.checked_add(elements.checked_mul(size_of::<T>())?)?;
            if end > self.bytes {
                return None;
            }
            self.taken = end;
            let first = self.first.wrapping_byte_add(begin).cast();
            Some(Part { first, elements, _mapping: self.mapping.clone() })
        }
    }

    impl<T: Pod> Part<T> {
        pub fn elements(&self) -> &[T] {
            // SAFETY: aligned, inside the mapping, which lives as long, zero at first, and zero bits are a
            // `T`; no other part has these bytes.
            unsafe { std::slice::from_raw_parts(self.first, self.elements) }
        }

        pub fn elements_mut(&mut self) -> &mut [T] {
            // SAFETY: as above, and borrowed mutably.
            unsafe { std::slice::from_raw_parts_mut(self.first, self.elements) }
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: the mapping is this one's own, and every part of it keeps it alive.
            let _ = unsafe { munmap(self.base, self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 7] = [0, 1, 1000, (2 << 20) / 4, (2 << 20) / 4 + 1, 3, 3_000_000];

    #[test]
    fn elements_are_zero_and_keep_what_is_written() {
        let bytes: usize = SIZES.iter().map(|elements| 4 * elements).sum();
        let mut arena = Arena::new(bytes, SIZES.len()).expect("memory");
        let mut buffers = SIZES.map(|elements| arena.take::<u32>(elements).expect("room"));
        drop(arena);
        for (number, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(buffer.len(), SIZES[number]);
            assert!(buffer.iter().all(|&element| element == 0));
            for (place, element) in buffer.iter_mut().enumerate() {
                *element = (number << 24 | place) as u32;
            }
        }
        for (number, buffer) in buffers.into_iter().enumerate() {
            let copy = buffer.clone();
            let written = |(i, &e): (usize, &u32)| e == (number << 24 | i) as u32;
            assert!(copy == buffer && copy.iter().enumerate().all(written));
        }
    }

    #[test]
    fn there_is_room_for_what_was_said_and_not_for_more() {
        assert!(Arena::new(usize::MAX / 2, 1).is_none() || cfg!(not(target_os = "linux")));
        let mut arena = Arena::new(5 << 20, 2).expect("memory");
        assert!(arena.take::<u32>(usize::MAX / 2).is_none());
        assert!(arena.take::<u16>(5 << 19).is_some());
        if cfg!(target_os = "linux") {
            assert!(arena.take::<u8>(2 << 20).is_none());
        }
        assert!(arena.take::<u8>(0).is_some());
    }

    #[test]
    fn parts_begin_at_cache_lines_and_the_first_at_a_page() {
        let mut arena = Arena::new(200, 3).expect("memory");
        let parts = [arena.take::<u8>(70), arena.take(3), arena.take(1)].map(Option::unwrap);
        if cfg!(target_os = "linux") {
            assert_eq!(parts[0].as_ptr().addr() % (2 << 20), 0);
            assert!(parts.iter().all(|part| part.as_ptr().addr() % 64 == 0));
        }
    }
}
