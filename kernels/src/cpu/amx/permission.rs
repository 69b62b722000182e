//! Whether the matrix unit can be used: by this processor, and by leave of the system.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// Why the matrix unit cannot be used; `None` if it can.
///
/// Asked once: Linux keeps the tiles' 8 KiB of a thread only for programs that ask for them, and
/// grants it to all of a program's threads.
pub fn refusal() -> Option<&'static str> {
    static ANSWER: OnceLock<Option<&'static str>> = OnceLock::new();
    *ANSWER.get_or_init(ask)
}

fn ask() -> Option<&'static str> {
    // Leaf 7: tiles in bit 24 and their products of bytes in bit 25 of EDX.
    let tiles_of_bytes = 1 << 24 | 1 << 25;
    if __cpuid(0).eax < 0x1d || __cpuid_count(7, 0).edx & tiles_of_bytes != tiles_of_bytes {
        return Some("the processor has no AMX tiles of bytes");
    }
    // Palette 1: eight tiles of 16 rows of 64 bytes.
    let palette = __cpuid_count(0x1d, 1);
    let (row_bytes, tiles, rows) = (palette.ebx & 0xffff, palette.ebx >> 16, palette.ecx & 0xffff);
    if row_bytes < 64 || tiles < 8 || rows < 16 {
        return Some("the processor's AMX tiles are smaller than 16 rows of 64 bytes");
    }
    // Bits 17 and 18: the configuration and the contents of tiles.
    let kept = 1 << 17 | 1 << 18;
    // SAFETY: the processor has XSAVE, without which there are no tiles; that the system uses it
    // shows in bit 27 of ECX.
    if __cpuid(1).ecx & 1 << 27 == 0 || unsafe { kept_states() } & kept != kept {
        return Some("the operating system does not keep AMX tiles");
    }
    (!granted()).then_some("the operating system does not allow AMX tiles")
}

/// The states that the system keeps.
///
/// # Safety
/// Requires XSAVE, in use by the system.
#[target_feature(enable = "xsave")]
unsafe fn kept_states() -> u64 {
    // SAFETY: the instruction is the caller's promise; register 0 is always there.
    unsafe { _xgetbv(0) }
}

/// Asks Linux to keep the contents of tiles: `arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)`.
#[cfg(target_os = "linux")]
fn granted() -> bool {
    const ARCH_PRCTL: u64 = 158;
    const REQUEST_PERMISSION: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let outcome: i64;
    // SAFETY: the call reads its two numbers and writes no memory of this program.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => outcome,
            in("rdi") REQUEST_PERMISSION, in("rsi") TILE_DATA,
            out("rcx") _, out("r11") _,
            options(nostack)
        );
    }
    outcome == 0
}

/// How other systems are asked was not tried.
#[cfg(not(target_os = "linux"))]
fn granted() -> bool {
    false
}
