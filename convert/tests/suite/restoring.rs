//! From packed words back to the source's files.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use w4pack_convert::restore::Report;
use w4pack_convert::{ConvertError, Silent, restore};
use w4pack_format::config::Config;
use w4pack_format::digest::sha256;
use w4pack_format::dtype::Dtype;
use w4pack_format::exact::{EXACT_FILE, Part};
use w4pack_format::header::Header;
use w4pack_format::names::NameLayout;
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::{FolderSource, Source};

use crate::support::restore::Sidecar;
use crate::support::small::{MATRIX, Small, group};
use crate::support::{names_in, open, options, run};

/// A source, what it was packed to, and where it comes back.
struct Case {
    folder: tempfile::TempDir,
}

impl Case {
    fn new(small: &Small, shards: usize, scale_dtype: ScaleDtype) -> Case {
        let folder = tempfile::tempdir().unwrap();
        let case = Case { folder };
        small.write(&case.path("source"), shards);
        run(&case.path("source"), &case.path("packed"), &options(scale_dtype)).unwrap();
        case
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn restore(&self, towers: Option<&Path>) -> Result<Report, ConvertError> {
        let open = |folder: &Path| Arc::new(FolderSource::open(folder).unwrap()) as Arc<dyn Source>;
        let towers = towers.map(open);
        restore(open(&self.path("packed")), towers, &self.path("back"), 2, &Silent)
    }

    /// The error, after which nothing is left.
    fn refused(&self, towers: Option<&Path>) -> ConvertError {
        let error = self.restore(towers).unwrap_err();
        assert!(names_in(self.folder.path()).iter().all(|name| !name.contains("back")), "{error}");
        error
    }
}

/// Difficult groups: steps that f16 cannot say, zeros of both signs, negative steps.
fn difficult(mut small: Small, seed: u64) -> Small {
    for number in 0..128_usize {
        let sign = if number % 3 == 0 { -1.0 } else { 1.0 };
        let step = sign * (0.003 + 1e-6 * (number as f64 + seed as f64 / 7.0));
        let mut bits = group(std::array::from_fn(|i| [-8, 0, 3, 0, 7][(i + number) % 5]), step);
        for (element, bits) in bits.iter_mut().enumerate() {
            let negative = (number * 7 + element * 5) % 4 == 0 && number % 4 < seed as usize % 5;
            *bits = if *bits & 0x7fff == 0 { u16::from(negative) << 15 } else { *bits };
        }
        small.set_group(number / 2, number % 2, &bits);
    }
    small
}

#[test]
fn the_source_comes_back_byte_for_byte() {
    for (seed, shards) in [(1, 1), (2, 3), (3, 2), (4, 1)] {
        for scale_dtype in ScaleDtype::ALL {
            let small = difficult(Small::google(seed), seed);
            let case = Case::new(&small, shards, scale_dtype);
            let report = case.restore(Some(&case.path("source"))).unwrap();
            assert!(report.complete && report.missing.is_empty());
            assert_eq!(report.tensors_from_towers, 3);
            assert_eq!(report.not_restored, [""; 0]);
            let names = names_in(&case.path("source"));
            assert_eq!(names_in(&case.path("back")), names);
            for name in &names {
                let [one, other] =
                    ["source", "back"].map(|root| fs::read(case.path(root).join(name)).unwrap());
                assert!(one == other, "{name}");
                let record = report.identical_files.iter().find(|file| file.path == *name).unwrap();
                assert_eq!(record.sha256, sha256(&one), "{name}");
            }
        }
    }
}

#[test]
fn a_text_only_source_needs_nothing_else() {
    let mut small = difficult(Small::text_only(5), 5);
    small.files.insert("README.md".into(), b"the source's card".to_vec());
    // A head with the bytes of its table is left out, and comes back from the table.
    let head = small.tensor("embed_tokens.weight").clone();
    small.tensors.insert("lm_head.weight".into(), head);
    let case = Case::new(&small, 1, ScaleDtype::F16);
    let report = case.restore(None).unwrap();
    assert!(report.complete);
    assert_eq!(report.not_restored, ["README.md"]);
    let weights = |root: &str| fs::read(case.path(root).join("model.safetensors")).unwrap();
    assert!(weights("source") == weights("back"));
}

#[test]
fn without_its_towers_the_text_model_is_a_checkpoint_of_its_own() {
    let small = difficult(Small::google(6), 6);
    let case = Case::new(&small, 2, ScaleDtype::F16);
    let report = case.restore(None).unwrap();
    assert!(!report.complete);
    let missing: Vec<&str> = report.missing.iter().map(|tensor| &*tensor.tensor).collect();
    assert_eq!(missing.len(), 3);
    assert!(missing.iter().all(|name| !name.contains("language_model")), "{missing:?}");
    assert!(report.not_restored.contains(&"model.safetensors.index.json".to_string()));
    let (source, back) = (open(&case.path("source")), open(&case.path("back")));
    let config = Config::load(&**back.source()).unwrap();
    assert_eq!(config.layout, NameLayout::TextOnly);
    assert!(config.quantization.is_none() && config.tie_word_embeddings);
    assert_eq!(back.names().count() + 3, source.names().count());
    for name in back.names() {
        let googles = NameLayout::Multimodal
            .full_name(name.strip_prefix(NameLayout::TextOnly.prefix()).unwrap());
        assert!(back.read(name).unwrap() == source.read(&googles).unwrap(), "{name}");
    }
    // It is a source like any other.
    let again = run(&case.path("back"), &case.path("again"), &options(ScaleDtype::F16)).unwrap();
    assert!(again.left_out.is_empty());
    let weights = |root: &str| fs::read(case.path(root).join("model.safetensors")).unwrap();
    assert!(weights("again") == weights("packed"));
}

#[test]
fn threads_change_no_byte() {
    let case = Case::new(&difficult(Small::google(7), 7), 1, ScaleDtype::F16);
    let packed: Arc<dyn Source> = Arc::new(FolderSource::open(&case.path("packed")).unwrap());
    let mut hashes = Vec::new();
    for threads in [1, 2, 7] {
        let out = case.path(&format!("back-{threads}"));
        restore(packed.clone(), None, &out, threads, &Silent).unwrap();
        hashes.push(sha256(&fs::read(out.join("model.safetensors")).unwrap()));
    }
    assert!(hashes.iter().all(|hash| *hash == hashes[0]));
}

#[test]
fn what_is_not_the_sources_is_refused_by_tensor() {
    let small = Small::google(8);
    let case = Case::new(&small, 1, ScaleDtype::F16);
    let mut other = small.clone();
    let tower = "model.audio_tower.layers.0.norm.weight";
    other.tensors.get_mut(tower).unwrap().bytes[5] ^= 1;
    other.write(&case.path("other"), 1);
    let error = case.refused(Some(&case.path("other")));
    assert!(error.to_string().contains(tower), "{error}");
    assert!(error.hint().unwrap().contains("--towers-from"));

    let packed = open(&case.path("packed"));
    let victim = format!("model.{}_packed", MATRIX);
    let found = packed.tensor(&victim).unwrap();
    let at = (found.shard.header.data_start() + found.info.begin) as usize + 77;
    let path = case.path("packed/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(&path, bytes).unwrap();
    let error = case.refused(Some(&case.path("source")));
    assert!(error.to_string().contains(MATRIX), "{error}");
    assert!(error.hint().unwrap().contains("verify"));

    for file in [EXACT_FILE, "w4pack/manifest.json"] {
        fs::remove_file(case.path("packed").join(file)).unwrap();
        let error = case.refused(None);
        assert!(error.to_string().contains(file), "{error}");
    }
}

/// Writes the sidecar again, some tensors changed, added or taken away.
fn edit_sidecar(folder: &Path, edit: impl FnOnce(&mut Vec<(String, Dtype, Vec<usize>, Vec<u8>)>)) {
    let sidecar = Sidecar::open(&open(folder));
    let mut tensors: Vec<_> = sidecar
        .header
        .tensors
        .iter()
        .map(|info| (info.name.clone(), info.dtype, info.shape.clone(), sidecar.tensor(&info.name)))
        .collect();
    edit(&mut tensors);
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.1.size()));
    let entries: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, _)| (name.clone(), *dtype, shape.clone()))
        .collect();
    let header = Header::lay_out(&entries).unwrap();
    let content: Vec<u8> = tensors.iter().flat_map(|tensor| tensor.3.clone()).collect();
    fs::write(folder.join(EXACT_FILE), [header.prefix(), content].concat()).unwrap();
}

#[test]
fn groups_that_no_step_gives_back_are_taken_as_they_are() {
    let mut small = Small::text_only(9);
    let bits = group(std::array::from_fn(|i| (i % 16) as i8 - 8), 0.0123);
    small.set_group(2, 1, &bits);
    let case = Case::new(&small, 1, ScaleDtype::F32);
    // As if it had been: the words of group 5 say nothing, its values stand in the sidecar.
    let module = format!("model.{}", MATRIX.strip_suffix(".weight").unwrap());
    let packed = open(&case.path("packed"));
    let found = packed.tensor(&format!("{module}.weight_packed")).unwrap();
    let at = (found.shard.header.data_start() + found.info.begin) as usize + 5 * 16;
    let path = case.path("packed/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    bytes[at..at + 16].fill(0x88);
    fs::write(&path, bytes).unwrap();
    let error = case.refused(None);
    assert!(error.to_string().contains(MATRIX), "{error}");
    edit_sidecar(&case.path("packed"), |tensors| {
        let values = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let (gaps, of_values) = (Part::VerbatimGaps, Part::VerbatimValues);
        tensors.push((gaps.tensor_name(&module), Dtype::U8, vec![1], vec![5]));
        tensors.push((of_values.tensor_name(&module), Dtype::BF16, vec![1, 32], values));
    });
    assert!(case.restore(None).unwrap().complete);
}

#[test]
fn lists_that_do_not_fit_are_refused_by_name() {
    type Fault<'a> = (Part, &'a dyn Fn(&mut Vec<u8>), &'a str);
    let (gaps, values) = (Part::StepGaps, Part::StepValues);
    let faults: [Fault<'_>; 4] = [
        (gaps, &|bytes| *bytes.last_mut().unwrap() = 255, "middle of a number"),
        (gaps, &|bytes| bytes.push(200), "which is not there"),
        (gaps, &|bytes| *bytes = vec![], "goes on behind"),
        (values, &|bytes| bytes.truncate(bytes.len() - 4), "ends before its list"),
    ];
    for (part, fault, words) in faults {
        let case = Case::new(&Small::text_only(10), 1, ScaleDtype::BF16);
        let module = format!("model.{}", MATRIX.strip_suffix(".weight").unwrap());
        edit_sidecar(&case.path("packed"), |tensors| {
            let name = part.tensor_name(&module);
            let tensor = tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap();
            fault(&mut tensor.3);
            tensor.2 = vec![tensor.3.len() / tensor.1.size()];
        });
        let text = case.refused(None).to_string();
        assert!(text.contains(words) && text.contains(&module), "{words}: {text}");
    }
}

#[test]
fn it_takes_the_place_of_nothing() {
    let case = Case::new(&Small::text_only(11), 1, ScaleDtype::F16);
    fs::create_dir(case.path("back")).unwrap();
    fs::write(case.path("back/thesis.txt"), "years of work").unwrap();
    let error = case.restore(None).unwrap_err();
    assert!(error.to_string().contains("it is not empty"), "{error}");
    let source: Arc<dyn Source> = Arc::new(FolderSource::open(&case.path("packed")).unwrap());
    let inside = restore(source, None, &case.path("packed/back"), 1, &Silent).unwrap_err();
    assert!(inside.to_string().contains("lies in the source"), "{inside}");
}
