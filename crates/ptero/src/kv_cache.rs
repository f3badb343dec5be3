//! The size of a key-value cache, as text.

use crate::error::{Context, Error, Result};
use ptero_plan::{CacheLayer, KvCache};
use ptero_pte::{DType, Program};
use std::str::FromStr;

/// The size of the key-value cache of a program that keeps keys and values outside its graph:
/// `capacity[,layers,kv_heads,head_dim][,type][@window[:window…]]`.
///
/// The program may describe everything but the capacity. Without a type, the cache has that of its keys. Windows repeat over the
/// layers; a layer with window `w` sees the last `w` positions, one with window 0 all.
///
/// ```
/// let spec: ptero::KvCacheSpec = "4096,6,8,64,15@512:512:0".parse()?;
/// let options = ptero::Options::new().kv_cache(spec);
/// # Ok::<(), ptero::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvCacheSpec {
    capacity: i64,
    /// The number of layers, and each of them; in upstream's form all are equal.
    uniform: Option<(i64, CacheLayer)>,
    dtype: Option<DType>,
    /// Repeated over the layers; empty leaves them as they are.
    windows: Vec<i64>,
}

impl FromStr for KvCacheSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let spec = Self::parse(text).ok_or_else(|| Error::CacheText(text.to_owned()))?;
        spec.alone()?;
        Ok(spec)
    }
}

fn numbers(text: &str, separator: char) -> Option<Vec<i64>> {
    text.split(separator).map(|part| part.trim().parse().ok()).collect()
}

impl KvCacheSpec {
    fn parse(text: &str) -> Option<Self> {
        let (sizes, windows) = match text.split_once('@') {
            Some((sizes, windows)) => (sizes, numbers(windows, ':')?),
            None => (text, Vec::new()),
        };
        let equal = |layers, kv_heads, head_dim| Some((layers, CacheLayer { kv_heads, head_dim, window: None }));
        let (capacity, uniform, code) = match numbers(sizes, ',')?.as_slice() {
            [capacity] => (*capacity, None, None),
            [capacity, code] => (*capacity, None, Some(*code)),
            [capacity, layers, heads, size] => (*capacity, equal(*layers, *heads, *size), None),
            [capacity, layers, heads, size, code] => (*capacity, equal(*layers, *heads, *size), Some(*code)),
            _ => return None,
        };
        let dtype = match code {
            Some(code) => Some(i8::try_from(code).ok().and_then(DType::from_code)?),
            None => None,
        };
        Some(Self { capacity, uniform, dtype, windows })
    }

    /// Returns the cache, if the text describes all of it.
    fn alone(&self) -> Result<Option<KvCache>> {
        let cache = self.uniform.map(|(layers, layer)| KvCache::uniform(self.capacity, layers, layer));
        cache.transpose()?.map(|cache| self.completed(cache)).transpose()
    }

    /// Returns the cache for a program.
    #[doc(hidden)]
    pub fn for_program(&self, program: &Program) -> Result<KvCache> {
        if let Some(cache) = self.alone()? {
            return Ok(cache);
        }
        let cache = KvCache::of_program(program, self.capacity);
        let cache = cache.context(|| "metadata of the program".to_owned())?;
        self.completed(cache.ok_or(Error::UnknownCacheLayers)?)
    }

    /// Adds the windows and the type of the text.
    fn completed(&self, cache: KvCache) -> Result<KvCache> {
        let cache = cache.with_windows(&self.windows)?;
        Ok(match self.dtype {
            Some(dtype) => cache.with_dtype(dtype)?,
            None => cache,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ptero_pte::schema::{EValue, Int, Tensor};
    use ptero_pte::{Bytes, Method};

    fn cache(text: &str, program: &Program) -> Result<KvCache> {
        text.parse::<KvCacheSpec>()?.for_program(program)
    }

    fn layer(kv_heads: i64, head_dim: i64, window: Option<i64>) -> CacheLayer {
        CacheLayer { kv_heads, head_dim, window }
    }

    /// A program that describes a cache of three layers.
    fn program(windows: &[i32]) -> Program {
        let mut program = Program { constants: vec![Bytes::default()], ..Program::default() };
        let lists: [(&str, &[i32]); 3] =
            [("get_kv_heads", &[8, 8, 4]), ("get_head_dims", &[64, 64, 128]), ("get_windows", windows)];
        for (name, list) in lists {
            let mut tensor = Tensor::new(DType::I32, vec![i32::try_from(list.len()).unwrap()]);
            tensor.data_buffer_idx = u32::try_from(program.constants.len()).unwrap();
            program.constants.push(list.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into());
            program.methods.push(Method::metadata(name, EValue::Tensor(tensor)));
        }
        program.methods.push(Method::metadata("get_n_caches", EValue::Int(Int { int_val: 3 })));
        program
    }

    #[test]
    fn upstreams_form_means_equal_layers_that_see_all() {
        let cache = cache("16, 2,2,8,15", &Program::default()).unwrap();
        assert_eq!((cache.capacity(), cache.dtype()), (16, Some(DType::Bf16)));
        assert_eq!(cache.layers(), [layer(2, 8, None); 2]);
    }

    #[test]
    fn windows_repeat_over_the_layers() {
        let cache = cache("4096,5,2,8@512:0", &Program::default()).unwrap();
        let windows: Vec<Option<i64>> = cache.layers().iter().map(|layer| layer.window).collect();
        assert_eq!(windows, [Some(512), None, Some(512), None, Some(512)]);
    }

    #[test]
    fn s1_7_layers_that_the_program_tells_need_only_a_capacity() {
        let program = program(&[512, 512, 0]);
        let told = cache("4096,15", &program).unwrap();
        assert_eq!((told.capacity(), told.dtype()), (4096, Some(DType::Bf16)));
        assert_eq!(told.layers(), [layer(8, 64, Some(512)), layer(8, 64, Some(512)), layer(4, 128, None)]);
        let wider = cache("4096@1024:1024:0", &program).unwrap();
        assert_eq!(wider.layers(), [layer(8, 64, Some(1024)), layer(8, 64, Some(1024)), layer(4, 128, None)]);
        assert_eq!(cache("64,1,2,8", &program).unwrap().layers(), [layer(2, 8, None)], "the text wins");
    }

    #[test]
    fn a_text_that_is_not_a_cache_is_refused() {
        for (text, windows, wanted) in [
            ("16,99", &[0, 0, 0], "`16,99` is not a key-value cache: capacity[,layers,kv_heads,head_dim][,type]"),
            ("16,2", &[0, 0, 0], "a key-value cache holds f32, f16 or bf16, not i16"),
            ("16,2,2", &[0, 0, 0], "`16,2,2` is not a key-value cache"),
            ("16,2,2,x", &[0, 0, 0], "`16,2,2,x` is not a key-value cache"),
            ("16,2,0,8", &[0, 0, 0], "0 is no possible number of heads of a key-value cache"),
            ("16,2,2,8@-4", &[0, 0, 0], "-4 is no possible window of a key-value cache"),
            ("2147483647,1,65536,65536", &[0, 0, 0], "is too large"),
            ("16,65537,1,1", &[0, 0, 0], "65537 is no possible number of layers of a key-value cache"),
            ("16", &[4, -4, 0], "-4 is no possible window of a key-value cache"),
        ] {
            let error = format!("{:#}", cache(text, &program(windows)).unwrap_err());
            assert!(error.contains(wanted), "{text}: {error}");
        }
        let error = cache("16", &program(&[4, 4])).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "metadata of the program: `get_windows` has 2 entries, but `get_n_caches` is 3"
        );
        let error = cache("16", &Program::default()).unwrap_err().to_string();
        assert_eq!(error, "the program does not say which layers its key-value cache has");
    }
}
