//! Memory of large tensors, in pages of 2 MiB where the system has them.
//!
//! Every weight is read once for a token, far more than address caches reach: with pages of 4 KiB
//! prototypes of the products lost 15 % with one thread and 8 % with two (a Xeon). The file itself
//! cannot be mapped so; hence a copy, which takes the place of the file's pages in memory.

use bytemuck::Pod;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Elements in memory: a vector, or pages of their own.
pub struct Buffer<T: Pod>(Memory<T>);

enum Memory<T: Pod> {
    Heap(Vec<T>),
    #[cfg(target_os = "linux")]
    Pages(pages::Pages<T>),
}

impl<T: Pod> Buffer<T> {
    /// So many elements of zero bits; `None` when the system gives no memory.
    pub fn zeroed(elements: usize) -> Option<Self> {
        #[cfg(target_os = "linux")]
        if elements.checked_mul(size_of::<T>())? >= pages::PAGE {
            return pages::Pages::zeroed(elements).map(|pages| Self(Memory::Pages(pages)));
        }
        bytemuck::allocation::try_zeroed_vec(elements).ok().map(Self::from)
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
            Memory::Pages(pages) => pages.elements(),
        }
    }
}

impl<T: Pod> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Memory::Heap(elements) => elements,
            #[cfg(target_os = "linux")]
            Memory::Pages(pages) => pages.elements_mut(),
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
    use std::marker::PhantomData;
    use std::ptr::null_mut;

    /// A large page.
    pub const PAGE: usize = 2 << 20;

    /// Elements in a mapping of their own, from a multiple of [`PAGE`] on.
    pub struct Pages<T> {
        base: *mut c_void,
        bytes: usize,
        first: *mut T,
        elements: usize,
        owned: PhantomData<T>,
    }

    // SAFETY: the mapping is owned, and reached through `&self` and `&mut self` only.
    unsafe impl<T: Send> Send for Pages<T> {}
    // SAFETY: as above.
    unsafe impl<T: Sync> Sync for Pages<T> {}

    impl<T: Pod> Pages<T> {
        pub fn zeroed(elements: usize) -> Option<Self> {
            let used = elements.checked_mul(size_of::<T>())?;
            let bytes = used.checked_add(PAGE)?;
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: a new mapping, at a place of the system's choice.
            let base = unsafe { mmap_anonymous(null_mut(), bytes, access, flags) }.ok()?;
            let first = base.wrapping_byte_add(base.addr().next_multiple_of(PAGE) - base.addr());
            // A wish; what lies before `first` is never touched and takes no memory.
            // SAFETY: the range lies in the mapping, and the advice changes no content.
            let _ = unsafe { madvise(first, used, Advice::LinuxHugepage) };
            Some(Self { base, bytes, first: first.cast(), elements, owned: PhantomData })
        }

        pub fn elements(&self) -> &[T] {
            // SAFETY: aligned, inside the mapping, zero at first, and zero bits are a `T`.
            unsafe { std::slice::from_raw_parts(self.first, self.elements) }
        }

        pub fn elements_mut(&mut self) -> &mut [T] {
            // SAFETY: as above, and borrowed mutably.
            unsafe { std::slice::from_raw_parts_mut(self.first, self.elements) }
        }
    }

    impl<T> Drop for Pages<T> {
        fn drop(&mut self) {
            // SAFETY: the mapping is this one's own, and nothing borrows from it any more.
            let _ = unsafe { munmap(self.base, self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_zero_and_keep_what_is_written() {
        for elements in [0, 1, 1000, (2 << 20) / 4, (2 << 20) / 4 + 1, 3_000_000] {
            let mut buffer = Buffer::<u32>::zeroed(elements).expect("memory");
            assert_eq!(buffer.len(), elements);
            assert!(buffer.iter().all(|&element| element == 0));
            for (place, element) in buffer.iter_mut().enumerate() {
                *element = place as u32;
            }
            let copy = buffer.clone();
            assert!(copy == buffer && copy.iter().enumerate().all(|(i, &e)| e == i as u32));
        }
        assert!(Buffer::<u32>::zeroed(usize::MAX / 2).is_none());
        assert!(Buffer::<u32>::zeroed(usize::MAX / 8).is_none(), "more than any machine has");
    }

    #[test]
    fn a_large_one_begins_at_a_page() {
        let buffer = Buffer::<u16>::zeroed(5 << 20).expect("memory");
        if cfg!(target_os = "linux") {
            assert_eq!(buffer.as_ptr().addr() % (2 << 20), 0);
        }
    }
}
