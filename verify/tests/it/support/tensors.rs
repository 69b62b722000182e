//! safetensors files held whole in memory.

use std::collections::BTreeMap;
use std::path::Path;

use w4pack_format::dtype::Dtype;
use w4pack_format::header::{Header, TensorInfo};

/// A tensor in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// A bf16 tensor from its bits.
    pub fn of_halves(shape: &[usize], bits: &[u16]) -> Tensor {
        let bytes = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        Tensor { dtype: Dtype::BF16, shape: shape.to_vec(), bytes }
    }

    /// The bits of 16-bit elements.
    pub fn halves(&self) -> Vec<u16> {
        assert_eq!(self.dtype.size(), 2);
        self.bytes.as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes)).collect()
    }

    /// The elements of an I8 tensor.
    pub fn signed_bytes(&self) -> Vec<i8> {
        assert_eq!(self.dtype, Dtype::I8);
        self.bytes.iter().map(|&byte| byte as i8).collect()
    }

    /// The elements of an F64 tensor.
    pub fn doubles(&self) -> Vec<f64> {
        assert_eq!(self.dtype, Dtype::F64);
        self.bytes.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect()
    }
}

/// The tensors of a safetensors file.
pub type Tensors = BTreeMap<String, Tensor>;

/// Reads a whole safetensors file.
pub fn read_safetensors(path: &Path) -> Tensors {
    let content = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    parse(&content)
}

/// The tensors of a file's bytes.
pub fn parse(content: &[u8]) -> Tensors {
    let header = Header::parse("test", content.len() as u64, &mut |offset, buffer| {
        let offset = offset as usize;
        buffer.copy_from_slice(&content[offset..offset + buffer.len()]);
        Ok(())
    })
    .unwrap();
    let data = &content[header.data_start() as usize..];
    let tensor = |info: &TensorInfo| Tensor {
        dtype: info.dtype,
        shape: info.shape.clone(),
        bytes: data[info.begin as usize..info.end as usize].to_vec(),
    };
    header.tensors.iter().map(|info| (info.name.clone(), tensor(info))).collect()
}

/// Every tensor of a folder's safetensors files, whatever shard it lies in.
pub fn read_folder(folder: &Path) -> Tensors {
    let mut tensors = Tensors::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            tensors.extend(read_safetensors(&path));
        }
    }
    tensors
}

/// The bytes of a safetensors file.
pub fn to_bytes(tensors: &Tensors) -> Vec<u8> {
    let list: Vec<(String, Dtype, Vec<usize>)> = tensors
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor.dtype, tensor.shape.clone()))
        .collect();
    let mut bytes = Header::lay_out(&list).unwrap().prefix();
    for tensor in tensors.values() {
        bytes.extend_from_slice(&tensor.bytes);
    }
    bytes
}
