//! `--kv-cache`: the size of a key-value cache, as text.

use anyhow::{Context, Result, bail};
use ptero_plan::{CacheLayer, KvCache};
use ptero_pte::{DType, Program};
use std::str::FromStr;

/// `16,2,2,8,6@4:0`: capacity, layers, heads, elements of a head, type, windows. The program may tell all but the capacity.
/// Without a type, the cache has that of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheSpec {
    capacity: i64,
    /// How many layers, and each of them; upstream's form, in which they are equal.
    uniform: Option<(i64, CacheLayer)>,
    dtype: Option<DType>,
    /// Repeated over the layers; none leaves them as they are.
    windows: Vec<i64>,
}

impl FromStr for CacheSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
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
            _ => bail!("wants capacity[,layers,kv_heads,head_dim][,type][@window[:window…]]"),
        };
        let dtype = |code: i64| {
            let dtype = i8::try_from(code).ok().and_then(DType::from_code);
            dtype.with_context(|| format!("{code} is no type"))
        };
        let spec = Self { capacity, uniform, dtype: code.map(dtype).transpose()?, windows };
        spec.alone()?;
        Ok(spec)
    }
}

fn numbers(text: &str, separator: char) -> Result<Vec<i64>> {
    let number = |part: &str| part.trim().parse().with_context(|| format!("`{part}` is no number"));
    text.split(separator).map(number).collect()
}

impl CacheSpec {
    /// The cache, if the text says all.
    fn alone(&self) -> Result<Option<KvCache>> {
        let cache = self.uniform.map(|(layers, layer)| KvCache::uniform(self.capacity, layers, layer));
        cache.transpose()?.map(|cache| self.completed(cache)).transpose()
    }

    /// The cache that it means for a program.
    pub(crate) fn for_program(&self, program: &Program) -> Result<KvCache> {
        if let Some(cache) = self.alone()? {
            return Ok(cache);
        }
        let cache = KvCache::of_program(program, self.capacity).context("metadata of the program")?;
        let cache = cache.context(
            "the program does not tell the layers of its cache\n\
             hint: give them with --kv-cache capacity,layers,kv_heads,head_dim",
        )?;
        self.completed(cache)
    }

    /// A cache with the windows and the type that the text says.
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
        text.parse::<CacheSpec>()?.for_program(program)
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
    fn windows_are_repeated_over_the_layers() {
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
    fn what_makes_no_cache_is_named() {
        for (text, windows, wanted) in [
            ("16,99", &[0, 0, 0], "99 is no type"),
            ("16,2", &[0, 0, 0], "a key-value cache holds f32, f16 or bf16, not i16"),
            ("16,2,2", &[0, 0, 0], "wants capacity[,layers,kv_heads,head_dim][,type][@window[:window…]]"),
            ("16,2,2,x", &[0, 0, 0], "`x` is no number"),
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
        assert!(error.starts_with("the program does not tell the layers of its cache\nhint: "), "{error}");
    }
}
