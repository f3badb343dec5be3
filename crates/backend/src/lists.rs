//! Lists whose memory outlives what they refer to, so that steps after the first allocate nothing.

use std::sync::{Mutex, PoisonError};

/// The memory of a list that one run after the other fills. Runs at the same time have a list each; the longest is kept.
#[derive(Debug)]
pub struct ListMemory<T>(Mutex<Vec<T>>);

impl<T> Default for ListMemory<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> ListMemory<T> {
    /// Takes the memory, for elements that differ from `T` in their lifetimes only.
    pub fn take<U>(&self) -> Vec<U> {
        emptied(std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Drops the elements of a list and keeps its memory.
    pub fn put_back<U>(&self, list: Vec<U>) {
        let list = emptied(list);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if list.capacity() > kept.capacity() {
            *kept = list;
        }
    }
}

/// The memory of a list, for one with another lifetime.
pub fn emptied<T, U>(mut list: Vec<T>) -> Vec<U> {
    list.clear();
    // This keeps the memory if the two types have the same size and alignment.
    list.into_iter().filter_map(|_| None).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_for_other_lifetimes_and_the_longest_of_two_lists_stays() {
        let memory = ListMemory::<&'static str>::default();
        let (text, mut list) = ("text".to_owned(), memory.take());
        list.extend([text.as_str(); 17]);
        let (address, capacity) = (list.as_ptr().addr(), list.capacity());
        let mut beside: Vec<&str> = memory.take();
        beside.push(&text);
        memory.put_back(list);
        memory.put_back(beside);
        let again: Vec<&str> = memory.take();
        assert_eq!((again.as_ptr().addr(), again.capacity(), again.len()), (address, capacity, 0));
    }
}
