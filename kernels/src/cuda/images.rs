//! Which machine code runs on which card.

use super::error::{CudaError, Result};
use flate2::read::GzDecoder;
use std::io::Read;

/// The kernels of one target, compressed, by source.
#[derive(Debug)]
pub struct Target {
    /// `sm_90`, or `compute_75` for PTX that the driver translates.
    pub name: &'static str,
    /// Source and image.
    pub images: [(&'static str, &'static [u8]); SOURCES],
}

/// Sources in `kernels/cuda/`.
const SOURCES: usize = 17;

macro_rules! target {
    ($name:literal, $extension:literal) => {
        Target { name: $name, images: target!($name, $extension, ["attend_mma", "attention_decode", "attention_prefill", "bandwidth", "batch_product", "embed", "gemm_ffma", "gemm_mma", "gemv", "gemv_tall", "rows", "token_attention", "token_block", "token_chain", "token_keys", "token_long", "token_product"]) }
    };
    ($name:literal, $extension:literal, [$($source:literal),*]) => {
        [$(($source, include_bytes!(concat!("../../prebuilt/", $name, "/", $source, ".", $extension, ".gz")))),*]
    };
}

/// Everything that is built in.
static TARGETS: [Target; 8] = [
    target!("sm_75", "cubin"),
    target!("sm_80", "cubin"),
    target!("sm_86", "cubin"),
    target!("sm_89", "cubin"),
    target!("sm_90", "cubin"),
    target!("sm_100", "cubin"),
    target!("sm_120", "cubin"),
    PTX,
];

/// All of them.
pub fn targets() -> &'static [Target] {
    &TARGETS
}

const PTX: Target = target!("compute_75", "ptx");

/// The driver that runs the oldest of our images: CUDA 12.0, driver 525.
const DRIVER_FOR_CUBINS: i32 = 12_000;
/// PTX of NVRTC 12.4 needs a driver of CUDA 12.4, 550.
const DRIVER_FOR_PTX: i32 = 12_040;

/// What is known of a card when its kernels are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked<'a> {
    /// Its name.
    pub card: &'a str,
    /// Compute capability.
    pub capability: (i32, i32),
    /// The newest CUDA version that the driver knows: 12_040 is 12.4.
    pub driver: i32,
    /// `W4PACK_KERNELS`: a target by name, or `ptx75`.
    pub forced: Option<&'a str>,
}

/// The target for a card: its exact machine code, else PTX.
///
/// Errors: a card before Turing; a driver too old for the choice; an unknown forced target.
pub fn choose(asked: &Asked<'_>) -> Result<&'static Target> {
    let (major, minor) = asked.capability;
    let unsupported = |problem: String| CudaError::Unsupported {
        card: asked.card.into(),
        major,
        minor,
        driver: version(asked.driver),
        problem,
    };
    let needs = |target: &'static Target, driver: i32, release: &str| match asked.driver >= driver {
        true => Ok(target),
        false => Err(unsupported(format!(
            "{} needs a driver of CUDA {} or newer ({release})",
            target.name,
            version(driver)
        ))),
    };
    let named = |name: &str| TARGETS.iter().find(|target| target.name == name);
    let ptx = named("compute_75").expect("PTX is built in");
    match asked.forced {
        Some("ptx75") => return needs(ptx, DRIVER_FOR_PTX, "550"),
        Some(forced) => {
            let known = || {
                let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
                format!("ptx75, {}", names.join(", "))
            };
            let target = named(forced).ok_or_else(|| CudaError::UnknownKernels {
                value: forced.into(),
                known: known(),
            })?;
            return needs(target, DRIVER_FOR_CUBINS, "525");
        }
        None => {}
    }
    if (major, minor) < (7, 5) {
        return Err(unsupported("w4pack's kernels need Turing (7.5) or newer".into()));
    }
    match named(&format!("sm_{major}{minor}")) {
        Some(target) => needs(target, DRIVER_FOR_CUBINS, "525"),
        None => needs(ptx, DRIVER_FOR_PTX, "550"),
    }
}

/// `12.4` of 12_040.
pub fn version(driver: i32) -> String {
    format!("{}.{}", driver / 1000, driver % 1000 / 10)
}

impl Target {
    /// Whether the driver has to translate it.
    pub fn is_ptx(&self) -> bool {
        self.name.starts_with("compute")
    }

    /// Whether its kernels copy to shared memory beside arithmetic, which they do from sm_80 on.
    pub fn copies_ahead(&self) -> bool {
        !self.is_ptx() && self.name != "sm_75"
    }

    /// The images, unpacked, with the 0 behind them that PTX ends with.
    pub(super) fn unpacked(&self) -> impl Iterator<Item = (&'static str, Vec<u8>)> {
        self.images.iter().map(|&(source, image)| {
            let mut bytes = Vec::new();
            GzDecoder::new(image).read_to_end(&mut bytes).expect("built-in images are sound");
            bytes.push(0);
            (source, bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(capability: (i32, i32), driver: i32, forced: Option<&'static str>) -> Asked<'static> {
        Asked { card: "Card", capability, driver, forced }
    }

    fn chosen(capability: (i32, i32), driver: i32) -> &'static str {
        choose(&asked(capability, driver, None)).expect("it is supported").name
    }

    #[test]
    fn a_card_gets_its_own_machine_code_and_others_ptx() {
        assert_eq!(chosen((7, 5), 12_000), "sm_75");
        assert_eq!(chosen((8, 6), 12_020), "sm_86");
        assert_eq!(chosen((9, 0), 13_000), "sm_90");
        assert_eq!(chosen((12, 0), 12_080), "sm_120");
        assert_eq!(chosen((8, 7), 12_040), "compute_75");
        assert_eq!(chosen((12, 1), 13_000), "compute_75");
    }

    #[test]
    fn what_cannot_run_is_refused_with_card_driver_and_the_driver_needed() {
        let text = |asked| choose(&asked).expect_err("it cannot run").to_string();
        let old_card = text(asked((6, 1), 12_040, None));
        assert!(
            old_card.contains("Card") && old_card.contains("6.1") && old_card.contains("Turing")
        );
        let old_driver = text(asked((8, 9), 11_080, None));
        assert!(
            old_driver.contains("11.8")
                && old_driver.contains("12.0")
                && old_driver.contains("525")
        );
        let no_ptx = text(asked((8, 7), 12_020, None));
        assert!(no_ptx.contains("12.4") && no_ptx.contains("550"), "{no_ptx}");
        assert!(text(asked((9, 0), 13_000, Some("sm_99"))).contains("sm_99"));
    }

    #[test]
    fn kernels_can_be_forced() {
        let name = |forced| choose(&asked((9, 0), 13_000, Some(forced))).expect("it is there").name;
        assert_eq!(name("ptx75"), "compute_75");
        assert_eq!(name("sm_90"), "sm_90");
    }

    #[test]
    fn every_image_unpacks_to_what_its_target_is() {
        for target in &TARGETS {
            for (source, image) in target.unpacked() {
                let magic: &[u8] = if target.is_ptx() { b"//" } else { b"\x7fELF" };
                let start = image.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(0);
                assert!(image[start..].starts_with(magic), "{} {source}", target.name);
            }
        }
    }
}
