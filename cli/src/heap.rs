//! The allocator's habits, where it is glibc's; elsewhere nothing is done.

/// Lets memory that a pass of the model has used stay for the next one. By itself the allocator gives rooms of
/// some MiB back to the system, which clears them anew for every layer: 3 % of a prompt's time with two threads.
pub fn keep_rooms() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: two numbers of the allocator are set; any are allowed.
    unsafe {
        // The largest room that it may take from its heap, and how much may lie idle at the heap's end.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 20);
    }
}

/// Gives back what lies idle: reading a tokenizer of 262,144 tokens leaves 160 MiB between what it keeps.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: memory in use is not touched.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// Bytes of this process in memory.
    fn resident() -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
        let pages: usize =
            pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("pages");
        pages * 4096
    }

    #[test]
    fn what_is_freed_between_kept_things_goes_back() {
        const THINGS: usize = 400_000;
        let mut things: Vec<Option<Box<[u8; 500]>>> =
            (0..THINGS).map(|number| Some(Box::new([number as u8; 500]))).collect();
        for (number, thing) in things.iter_mut().enumerate() {
            if number % 200 > 0 {
                *thing = None;
            }
        }
        let before = resident();
        give_back();
        let after = resident();
        assert!(after + (100 << 20) < before, "{before} to {after}");
        let kept =
            things.iter().enumerate().filter_map(|(number, thing)| Some((number, thing.as_ref()?)));
        assert!(kept.into_iter().all(|(number, thing)| **thing == [number as u8; 500]));
    }
}
