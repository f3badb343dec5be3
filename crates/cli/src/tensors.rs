//! Files of tensors, in the form that upstream's test suite writes.

use anyhow::{Context, Result, bail, ensure};
use ptero::{DType, Tensor};
use std::io::{self, Write};
use std::path::Path;

/// The types that such files can hold, in the order of their numbers there.
const DTYPES: [DType; 7] = [DType::F32, DType::F16, DType::I32, DType::I64, DType::Bf16, DType::Bool, DType::U8];

pub(crate) fn read(path: &Path) -> Result<Vec<Tensor>> {
    let bytes = std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
    parse(&bytes).with_context(|| path.display().to_string())
}

fn parse(bytes: &[u8]) -> Result<Vec<Tensor>> {
    let mut rest = bytes;
    let count = number(&mut rest)?;
    let mut tensors = Vec::new();
    for _ in 0..count {
        let (code, rank) = (number(&mut rest)?, number(&mut rest)?);
        let dtype = usize::try_from(code).ok().and_then(|code| DTYPES.get(code)).copied();
        let dtype = dtype.with_context(|| format!("{code} is not an element type of such files"))?;
        ensure!(rank <= 16, "rank {rank} is over the limit of 16");
        let sizes = (0..rank).map(|_| Ok(u64::from(number(&mut rest)?))).collect::<Result<Vec<u64>>>()?;
        let bytes = ptero_pte::byte_count(&sizes, dtype).and_then(|bytes| usize::try_from(bytes).ok());
        let Some((data, after)) = bytes.and_then(|bytes| rest.split_at_checked(bytes)) else {
            bail!("ends inside a tensor of shape {sizes:?}");
        };
        tensors.push(Tensor::new(dtype, &sizes, data.to_vec())?);
        rest = after;
    }
    Ok(tensors)
}

fn number(rest: &mut &[u8]) -> Result<u32> {
    let (number, after) = rest.split_first_chunk::<4>().context("ends inside a number")?;
    *rest = after;
    Ok(u32::from_le_bytes(*number))
}

pub(crate) fn write(tensors: &[Tensor], out: &mut dyn Write) -> io::Result<()> {
    let number = |value: usize| u32::try_from(value).map_err(|_| io::Error::other("too large for such files"));
    out.write_all(&number(tensors.len())?.to_le_bytes())?;
    for tensor in tensors {
        let code = DTYPES.iter().position(|dtype| *dtype == tensor.dtype());
        let code = code.ok_or_else(|| io::Error::other(format!("{} has no number in such files", tensor.dtype())))?;
        out.write_all(&number(code)?.to_le_bytes())?;
        out.write_all(&number(tensor.shape().len())?.to_le_bytes())?;
        for size in tensor.shape() {
            let size = u32::try_from(*size).map_err(|_| io::Error::other("too large for such files"))?;
            out.write_all(&size.to_le_bytes())?;
        }
        out.write_all(tensor.bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_and_no_part_of_it_does() {
        let tensors = vec![
            Tensor::new(DType::I64, &[2, 1], (0..16).collect()).unwrap(),
            Tensor::new(DType::Bool, &[], vec![1]).unwrap(),
        ];
        let mut bytes = Vec::new();
        write(&tensors, &mut bytes).unwrap();
        assert_eq!(parse(&bytes).unwrap(), tensors);
        for length in 0..bytes.len() {
            assert!(parse(bytes.get(..length).unwrap()).is_err(), "{length}");
        }
        assert!(write(&[Tensor::new(DType::F64, &[], vec![0; 8]).unwrap()], &mut Vec::new()).is_err());
    }
}
