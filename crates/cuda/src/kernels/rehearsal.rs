//! Rehearsals: a call goes through its steps without launching anything, and notes what has to be compiled, so that all cores compile at
//! once. One kernel after the other, a first call takes half a minute.

use super::{Kernels, module_key};
use crate::module::{Source, Variant};
use crate::sample::LogitType;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the rehearsal under way has noted; `None` if there is none.
#[derive(Debug, Default)]
pub(super) struct Rehearsal(Mutex<Option<Vec<Wanted>>>);

/// Something to compile.
#[derive(Debug, PartialEq)]
enum Wanted {
    Module { key: String, source: &'static Source, defines: Vec<(String, String)>, generated: String },
    Sampler(LogitType),
}

impl Rehearsal {
    fn lock(&self) -> MutexGuard<'_, Option<Vec<Wanted>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a rehearsal when dropped: after a panic, too, launches must happen again.
struct UnderWay<'a>(&'a Rehearsal);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

impl Kernels {
    /// Goes through `launches`, of which none happens, and compiles what they need. Returns `true` if everything was there already. Only
    /// the thread whose turn it is to launch may call this. What cannot be compiled shows when it is launched.
    pub(crate) fn rehearse(&self, launches: impl FnOnce()) -> bool {
        *self.rehearsal.lock() = Some(Vec::new());
        let under_way = UnderWay(&self.rehearsal);
        launches();
        let wanted = under_way.0.lock().take().unwrap_or_default();
        let (next, threads) = (AtomicUsize::new(0), std::thread::available_parallelism().map_or(1, usize::from));
        std::thread::scope(|scope| {
            for _ in 0..threads.min(wanted.len()) {
                scope.spawn(|| {
                    while let Some(wanted) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                        self.prepare(wanted);
                    }
                });
            }
        });
        wanted.is_empty()
    }

    fn prepare(&self, wanted: &Wanted) {
        match wanted {
            Wanted::Module { key, source, defines, generated } => {
                let defines: Vec<(&str, &str)> =
                    defines.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                drop(self.module(key, source, Variant { defines: &defines, generated }));
            }
            Wanted::Sampler(logits) => drop(self.sampler(*logits)),
        }
    }

    /// Returns `true` during a rehearsal: launches then do not happen.
    pub(crate) fn rehearses(&self) -> bool {
        self.rehearsal.lock().is_some()
    }

    /// During a rehearsal: returns `true`, and notes the kernel of a launch that does not happen.
    pub(crate) fn notes(&self, source: &'static Source, variant: Variant<'_>) -> bool {
        self.note(|| {
            let key = module_key(source, variant);
            let is_loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner).modules.contains_key(&key);
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let defines = variant.defines.iter().map(owned).collect();
            (!is_loaded).then(|| Wanted::Module { key, source, defines, generated: variant.generated.to_owned() })
        })
    }

    /// As [`Kernels::notes`], for a draw.
    pub(crate) fn notes_draw(&self, logits: LogitType) -> bool {
        self.note(|| {
            let is_loaded = self.samplers.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&logits);
            (!is_loaded).then_some(Wanted::Sampler(logits))
        })
    }

    fn note(&self, wanted: impl FnOnce() -> Option<Wanted>) -> bool {
        let mut rehearsal = self.rehearsal.lock();
        let Some(noted) = rehearsal.as_mut() else { return false };
        if let Some(wanted) = wanted().filter(|wanted| !noted.contains(wanted)) {
            noted.push(wanted);
        }
        true
    }
}
