//! Checkpoints written by tests.

use super::Tensors;
use half::{bf16, f16};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use w4pack_format::dtype::Dtype;
use w4pack_format::group::{GROUP, pack};
use w4pack_format::header::Header;
use w4pack_format::scale::ScaleDtype;

/// A checkpoint in the making: configuration and tensors in their order.
#[derive(Clone)]
pub struct Draft {
    pub config: Value,
    pub tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
}

impl Draft {
    /// The checkpoint in one file of a folder.
    pub fn from_folder(folder: &Path) -> Self {
        let config = fs::read(folder.join("config.json")).expect("config.json is there");
        let tensors = Tensors::read(&folder.join("model.safetensors")).tensors;
        Self {
            config: serde_json::from_slice(&config).expect("it is JSON"),
            tensors: tensors.into_iter().map(|(n, (d, s, b))| (n, d, s, b)).collect(),
        }
    }

    pub fn write(&self, folder: &Path) {
        fs::create_dir_all(folder).expect("the folder can be made");
        let entries: Vec<_> =
            self.tensors.iter().map(|(n, d, s, _)| (n.clone(), *d, s.clone())).collect();
        let mut file = Header::lay_out(&entries).expect("names are unique").prefix();
        for (_, _, _, bytes) in &self.tensors {
            file.extend_from_slice(bytes);
        }
        fs::write(folder.join("model.safetensors"), file).expect("the file can be written");
        let config = serde_json::to_vec_pretty(&self.config).expect("JSON prints");
        fs::write(folder.join("config.json"), config).expect("the file can be written");
    }

    pub fn position(&self, name: &str) -> usize {
        let found = self.tensors.iter().position(|tensor| tensor.0 == name);
        found.unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub fn bytes_mut(&mut self, name: &str) -> &mut Vec<u8> {
        let position = self.position(name);
        &mut self.tensors[position].3
    }

    pub fn remove(&mut self, name: &str) {
        let position = self.position(name);
        self.tensors.remove(position);
    }

    /// Replaces the plain tensor `NAME.weight` by codes and steps, and says so in the config.
    pub fn pack(&mut self, name: &str, codes: &[i8], steps: &[f32], dtype: ScaleDtype) {
        let position = self.position(name);
        let (_, _, shape, _) = self.tensors.remove(position);
        let module = name.strip_suffix(".weight").expect("a weight");
        self.add_packed(module, &shape, codes, steps, dtype);
        self.config["quantization_config"] = quantization();
    }

    pub fn add_packed(
        &mut self,
        module: &str,
        shape: &[usize],
        codes: &[i8],
        steps: &[f32],
        dtype: ScaleDtype,
    ) {
        let (rows, columns) = (shape[0], shape[1]);
        let groups = codes.as_chunks::<GROUP>().0;
        let words = groups.iter().flat_map(pack).flat_map(u32::to_le_bytes).collect();
        let mut scales = Vec::new();
        for &step in steps {
            match dtype {
                ScaleDtype::F32 => scales.extend(step.to_le_bytes()),
                ScaleDtype::F16 => scales.extend(f16::from_f32(step).to_le_bytes()),
                ScaleDtype::BF16 => scales.extend(bf16::from_f32(step).to_le_bytes()),
            }
        }
        let sizes = [rows as i64, columns as i64].iter().flat_map(|n| n.to_le_bytes()).collect();
        let name = |part: &str| format!("{module}.{part}");
        let scale_shape = vec![rows, columns / GROUP];
        self.tensors.extend([
            (name("weight_packed"), Dtype::I32, vec![rows, columns / 8], words),
            (name("weight_scale"), dtype.dtype(), scale_shape, scales),
            (name("weight_shape"), Dtype::I64, vec![2], sizes),
        ]);
    }

    pub fn add_bf16(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect();
        self.tensors.push((name.into(), Dtype::BF16, shape.to_vec(), bytes));
    }
}

/// `quantization_config` of the layout in which everything is packed and the head is tied.
pub fn quantization() -> Value {
    json!({
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "dequantize": true,
        "config_groups": {"group_0": {
            "format": "pack-quantized",
            "targets": ["Linear", "re:.*embed_tokens$", "re:.*embed_tokens_per_layer$"],
            "weights": {
                "num_bits": 4, "type": "int", "symmetric": true,
                "strategy": "group", "group_size": 32, "dynamic": false
            }
        }},
        "ignore": ["re:.*lm_head$"]
    })
}
