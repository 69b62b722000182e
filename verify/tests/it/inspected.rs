//! The X-ray names the grid that files were made on.

use std::sync::Arc;

use crate::oracle::round_to_bf16;
use crate::support::checkpoint::Parts;
use crate::support::synthetic::{self, Random};
use crate::support::tensors::Tensor;
use crate::support::{conformance, packer};
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::FolderSource;
use w4pack_verify::inspect::{XRay, inspect, plot};

/// A source whose every matrix is made by a rule of 32 random numbers in -1..1.
fn made_by(rule: impl Fn(&[f64; 32]) -> [u16; 32]) -> Parts {
    let mut source = synthetic::source(70);
    let mut random = Random(71);
    for tensor in source.tensors.values_mut().filter(|tensor| tensor.shape.len() == 2) {
        let groups = tensor.bytes.len() / 64;
        let bits: Vec<u16> = (0..groups)
            .flat_map(|_| {
                let values =
                    std::array::from_fn(|_| random.below(1 << 24) as f64 / (1 << 23) as f64 - 1.0);
                rule(&values)
            })
            .collect();
        *tensor = Tensor::of_halves(&tensor.shape.clone(), &bits);
    }
    source
}

fn largest(values: &[f64; 32]) -> f64 {
    values
        .iter()
        .copied()
        .fold(0.0, |most: f64, value| if value.abs() > most.abs() { value } else { most })
}

fn coded(values: &[f64; 32], step: f64) -> [u16; 32] {
    values.map(|value| round_to_bf16((value / step).round_ties_even().clamp(-8.0, 7.0) * step))
}

fn xray(parts: &Parts) -> XRay {
    inspect(&parts.source(), &()).unwrap()
}

/// A number of a dtype near a real one.
fn rounded(step: f64, dtype: ScaleDtype) -> f64 {
    let mut bytes = Vec::new();
    dtype.write(step as f32, &mut bytes);
    f64::from(dtype.read(&bytes))
}

#[test]
fn every_known_rule_is_named() {
    let qat =
        made_by(|values| coded(values, rounded(largest(values).abs() / 7.5, ScaleDtype::F32)));
    assert_eq!(
        xray(&qat).grid.as_deref(),
        Some("positive steps, steps of more than 11 bits (f32)")
    );
    let f16 =
        made_by(|values| coded(values, rounded(largest(values).abs() / 7.5, ScaleDtype::F16)));
    assert_eq!(xray(&f16).grid.as_deref(), Some("positive steps, f16 steps"));
    let bf16 =
        made_by(|values| coded(values, rounded(largest(values).abs() / 7.5, ScaleDtype::BF16)));
    assert_eq!(xray(&bf16).grid.as_deref(), Some("positive steps, bf16 steps"));
    let q4_0 = made_by(|values| coded(values, rounded(largest(values) / -8.0, ScaleDtype::F16)));
    let found = xray(&q4_0);
    assert_eq!(found.grid.as_deref(), Some("signed steps (Q4_0: largest value / -8), f16 steps"));
    assert!(found.dense.negative_steps * 3 > found.dense.with_step());
    let none = made_by(|values| values.map(round_to_bf16));
    let found = xray(&none);
    assert_eq!((found.grid, found.dense.on_grid[0].on_grid), (None, 0));

    let packed = packer::emb4(&q4_0.tensors, &q4_0.files, ScaleDtype::F16);
    let rule = xray(&packed).packed_rule.unwrap();
    assert!(rule.starts_with("signed steps, every group reaches -8"), "{rule}");
    let packed = packer::emb4(&qat.tensors, &qat.files, ScaleDtype::F16);
    let rule = xray(&packed).packed_rule.unwrap();
    assert!(rule.starts_with("positive steps, peaks of 7 and 8"), "{rule}");
    let sevens = made_by(|values| {
        let step = rounded(largest(values).abs() / 7.0, ScaleDtype::F16);
        values.map(|value| round_to_bf16((value / step).round_ties_even().clamp(-7.0, 7.0) * step))
    });
    let packed = packer::emb4(&sevens.tensors, &sevens.files, ScaleDtype::F16);
    let rule = xray(&packed).packed_rule.unwrap();
    assert!(rule.contains("largest value / 7)"), "{rule}");
}

/// A grid of 64 or 128 values is told from one of 32.
#[test]
fn the_group_size_shows() {
    let found = xray(&made_by(|values| coded(values, 0.0137)));
    let shares: Vec<bool> =
        found.dense.on_grid.iter().map(|share| share.on_grid == share.tried).collect();
    assert_eq!(shares, [true; 3], "one step everywhere");
    let found = xray(&made_by(|values| coded(values, largest(values).abs() / 7.5)));
    let [small, middle, _] = found.dense.on_grid;
    assert!(small.on_grid == small.tried && middle.on_grid * 10 < middle.tried, "{middle:?}");
}

#[test]
fn zeros_heads_and_unusable_steps_are_counted() {
    let source = synthetic::source(72);
    let mut pack = packer::emb4(&source.tensors, &source.files, ScaleDtype::F16);
    let clean = xray(&pack);
    assert_eq!((clean.packed.unusable, clean.head_is_table), (0, None));
    assert_eq!(clean.tie_word_embeddings, Some(true));
    assert!(clean.packed.peaks[0] > 0 && clean.packed.negative_steps > 0);
    pack.bytes_mut("model.layers.0.mlp.up_proj.weight_scale")[..2].copy_from_slice(&[0, 0x7E]);
    packer::untie(&mut pack);
    let found = xray(&pack);
    assert_eq!((found.packed.unusable, found.head_is_table), (1, Some(true)));
    pack.bytes_mut("lm_head.weight_packed")[0] ^= 1;
    assert_eq!(xray(&pack).head_is_table, Some(false));
    let found = xray(&source);
    assert!(found.dense.negative_zeros > 0 && found.dense.negative_zeros < found.dense.zeros);
    let bytes: u64 = found.kinds.iter().map(|kind| kind.bytes).sum();
    let all: usize = source.tensors.values().map(|tensor| tensor.bytes.len()).sum();
    assert_eq!(bytes, all as u64);
}

#[test]
fn the_plot_shows_both_and_escapes_names() {
    let source = synthetic::source(73);
    let mut found = xray(&source);
    found.label = "<a&b>".into();
    let svg = plot(&found).svg();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(svg.contains("&lt;a&amp;b&gt;") && svg.contains("bf16 values: peak levels"));
    assert!(svg.matches("<rect").count() > 9 && !svg.contains("NaN"));
}

/// The PNG shows the same bars: read back by its own library, dark where the SVG has a bar.
#[test]
fn the_png_is_the_same_picture() {
    let found = xray(&synthetic::source(73));
    let file = plot(&found).png().unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(&file)).read_info().unwrap();
    let mut shades = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut shades).unwrap();
    let svg = plot(&found).svg();
    assert!(svg.contains(&format!("width=\"{}\" height=\"{}\"", frame.width, frame.height)));
    let number = |line: &str, key: &str| -> usize {
        let (_, rest) = line.split_once(&format!(" {key}=\"")).unwrap();
        rest.split_once('"').unwrap().0.parse().unwrap()
    };
    let mut bars = 0;
    for line in svg.lines().filter(|line| line.starts_with("<rect x=")) {
        let [x, y, width, height] = ["x", "y", "width", "height"].map(|key| number(line, key));
        if width > 2 && height > 2 {
            let shade = shades[(y + height / 2) * frame.width as usize + x + width / 2];
            assert_eq!(shade, 0x55, "{line}");
            bars += 1;
        }
    }
    assert!(bars > 4);
    assert!(shades.contains(&0), "titles are drawn");
    assert_eq!(plot(&found).png().unwrap(), file, "the same bytes each time");
}

#[test]
fn the_reference_sets_are_what_their_readme_says() {
    for (set, grid) in [
        ("tiny-a", "signed steps (Q4_0: largest value / -8), f16 steps"),
        ("tiny-c", "positive steps, steps of more than 11 bits (f32)"),
    ] {
        let Some(set) = conformance(set) else { return };
        let source = Arc::new(FolderSource::open(&set.join("google")).unwrap());
        let found = inspect(&(source as Arc<dyn w4pack_format::source::Source>), &()).unwrap();
        assert_eq!(found.grid.as_deref(), Some(grid));
    }
}
