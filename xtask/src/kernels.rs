//! Builds the CUDA kernels: for every source and target one compressed image and a line in
//! `kernels/prebuilt/manifest.json`.

use crate::nvcc;
use crate::nvrtc::{Header, Nvrtc};
use crate::wheels::{self, Release, Unpacked};
use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Newest that still builds for Turing.
const FOR_CARDS: Release = Release { nvrtc: "12.9.86", runtime: "12.9.79" };
/// PTX of this one loads on every driver from 550 on.
const FOR_PTX: Release = Release { nvrtc: "12.4.127", runtime: "12.4.127" };

/// What is built: a card's machine code, or PTX for cards that have none here.
const TARGETS: [(&str, Release); 8] = [
    ("sm_75", FOR_CARDS),
    ("sm_80", FOR_CARDS),
    ("sm_86", FOR_CARDS),
    ("sm_89", FOR_CARDS),
    ("sm_90", FOR_CARDS),
    ("sm_100", FOR_CARDS),
    ("sm_120", FOR_CARDS),
    ("compute_75", FOR_PTX),
];

/// Warning 128 is about loops that a template parameter leaves empty.
const OPTIONS: [&str; 2] = ["--std=c++17", "--diag-suppress=128"];

#[derive(Serialize, Deserialize, PartialEq, Default)]
struct Manifest {
    /// SHA-256 of every source and header.
    sources: BTreeMap<String, String>,
    targets: BTreeMap<String, Target>,
}

#[derive(Serialize, Deserialize, PartialEq)]
struct Target {
    compiler: String,
    options: Vec<String>,
    /// SHA-256 and bytes of every image before compression.
    images: BTreeMap<String, Image>,
}

#[derive(Serialize, Deserialize, PartialEq)]
struct Image {
    sha256: String,
    bytes: usize,
}

/// A manifest and the images it speaks of, by path below `prebuilt`.
struct Built {
    manifest: Manifest,
    images: Images,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").into()
}

/// Writes everything.
pub fn build(only: &[String]) -> Result<()> {
    let prebuilt = root().join("kernels/prebuilt");
    let mut built = compile(only, unpack()?)?;
    if !only.is_empty() {
        // A partial build leaves the other targets as they are.
        let old = read_manifest(&prebuilt).unwrap_or_default();
        for (name, target) in old.targets {
            built.manifest.targets.entry(name).or_insert(target);
        }
    }
    for (path, image) in &built.images {
        let path = prebuilt.join(path);
        fs::create_dir_all(path.parent().expect("an image lies in its target's folder"))?;
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(image)?;
        fs::write(path, gzip.finish()?)?;
    }
    let mut text = serde_json::to_string_pretty(&built.manifest)?;
    text.push('\n');
    fs::write(prebuilt.join("manifest.json"), text)?;
    println!("{} images in {}", built.images.len(), prebuilt.display());
    Ok(())
}

/// Compares what is committed: sources and images with the manifest, and the manifest with what the
/// sources give for the targets named, or for all.
pub fn check(only: &[String]) -> Result<()> {
    let prebuilt = root().join("kernels/prebuilt");
    let committed = read_manifest(&prebuilt)?;
    let releases = match unpack() {
        Ok(releases) => releases,
        Err(error) => {
            println!("skipped: the kernels are not rebuilt: {error:#}");
            return Ok(());
        }
    };
    let built = compile(only, releases)?;
    let mut faults = Vec::new();
    if built.manifest.sources != committed.sources {
        faults.push("the sources are not those that were built".to_string());
    }
    for (name, target) in &built.manifest.targets {
        if committed.targets.get(name) != Some(target) {
            faults.push(format!("{name} differs from the manifest"));
        }
    }
    for (name, target) in &committed.targets {
        for (stem, image) in &target.images {
            let path = Path::new(name).join(format!("{stem}.{}.gz", extension(name)));
            let file = fs::File::open(prebuilt.join(&path))
                .with_context(|| format!("kernels/prebuilt/{}", path.display()))?;
            let mut found = Vec::new();
            std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(file), &mut found)?;
            if hash(&found) != image.sha256 {
                faults.push(format!(
                    "kernels/prebuilt/{} is not what the manifest says",
                    path.display()
                ));
            }
        }
    }
    if !faults.is_empty() {
        bail!("{}\nhint: run `cargo xtask kernels` and commit what it writes", faults.join("\n"));
    }
    println!("{} images are what the sources give", built.images.len());
    if only.is_empty() { check_with_nvcc() } else { Ok(()) }
}

/// Has nvcc look at every source.
fn check_with_nvcc() -> Result<()> {
    let folder = root().join("kernels/cuda");
    let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut sources = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "cu"));
    sources.sort();
    match nvcc::check(&sources, &root().join("target/xtask")) {
        Err(error) if error.downcast_ref::<nvcc::Unavailable>().is_some() => {
            println!("skipped: nvcc has not seen the kernels: {error:#}");
            Ok(())
        }
        checked => checked,
    }
}

fn read_manifest(prebuilt: &Path) -> Result<Manifest> {
    let path = prebuilt.join("manifest.json");
    let text = fs::read(&path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_slice(&text)?)
}

fn unpack() -> Result<Vec<(Release, Unpacked)>> {
    let folder = root().join("target/xtask");
    [FOR_CARDS, FOR_PTX]
        .map(|release| Ok((release, wheels::unpack(release, &folder)?)))
        .into_iter()
        .collect()
}

fn compile(only: &[String], releases: Vec<(Release, Unpacked)>) -> Result<Built> {
    let (sources, headers) = read_sources()?;
    let hashes =
        sources.iter().chain(&headers).map(|file| (file.name.clone(), hash(file.text.as_bytes())));
    let mut built = Built {
        manifest: Manifest { sources: hashes.collect(), ..Manifest::default() },
        images: BTreeMap::new(),
    };
    let compilers: Vec<_> = releases
        .into_iter()
        .map(|(release, unpacked)| Ok((release, Nvrtc::load(&unpacked.library)?, unpacked.include)))
        .collect::<Result<_>>()?;
    let wanted = |name: &str| only.is_empty() || only.iter().any(|wanted| wanted == name);
    let (sources, headers, compilers) = (&sources, &headers, &compilers);
    // A thread a target: the compiler uses one core for each program.
    let compiled: Vec<Result<(&str, Target, Images)>> = std::thread::scope(|scope| {
        let targets = TARGETS.into_iter().filter(|(name, _)| wanted(name));
        let threads: Vec<_> = targets
            .map(|(name, release)| {
                scope.spawn(move || {
                    let (_, compiler, include) =
                        compilers.iter().find(|c| c.0 == release).expect("every release is there");
                    compile_target(name, release, compiler, include, sources, headers)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no compiler panics")).collect()
    });
    for target in compiled {
        let (name, target, images) = target?;
        built.images.extend(images);
        built.manifest.targets.insert(name.into(), target);
    }
    Ok(built)
}

type Images = BTreeMap<PathBuf, Vec<u8>>;

fn compile_target(
    name: &'static str,
    release: Release,
    compiler: &Nvrtc,
    include: &Path,
    sources: &[Header],
    headers: &[Header],
) -> Result<(&'static str, Target, Images)> {
    let is_ptx = extension(name) == "ptx";
    let mut options = vec![format!("--gpu-architecture={name}")];
    options.extend(OPTIONS.map(String::from));
    let compiler_name = format!("NVRTC {}", release.nvrtc);
    let mut target =
        Target { compiler: compiler_name, options: options.clone(), images: BTreeMap::new() };
    options.push(format!("--include-path={}", include.display()));
    let mut images = Images::new();
    for source in sources {
        let mut image = compiler.compile(&source.name, &source.text, headers, &options, is_ptx)?;
        if is_ptx && image.last() == Some(&0) {
            image.pop(); // the loader adds its own
        }
        let stem = source.name.trim_end_matches(".cu");
        let entry = Image { sha256: hash(&image), bytes: image.len() };
        target.images.insert(stem.into(), entry);
        images.insert(PathBuf::from(name).join(format!("{stem}.{}.gz", extension(name))), image);
    }
    println!("{name}: {} images by {}", target.images.len(), target.compiler);
    Ok((name, target, images))
}

/// The sources and the headers they include, by name.
fn read_sources() -> Result<(Vec<Header>, Vec<Header>)> {
    let folder = root().join("kernels/cuda");
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.push(Header { text: fs::read_to_string(&path)?, name });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files.into_iter().partition(|file| file.name.ends_with(".cu")))
}

/// Of a target's images.
fn extension(target: &str) -> &'static str {
    if target.starts_with("compute") { "ptx" } else { "cubin" }
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
