//! A value whose bytes must not be seen.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use crate::secret::pages::{PAGE_BYTES, Pages};
use crate::secret::stack::wiped_stack;

/// What making a value may leave on the stack: the value itself, and what it is made of.
const STACK_BYTES: usize = 32 << 10;

/// A value in locked pages of its own, as the round keys of a cipher. Overwritten when it is dropped; `Debug` does not show it.
pub struct Locked<T> {
    pages: Pages,
    value: PhantomData<T>,
}

impl<T> Locked<T> {
    /// The value that `make` makes, without the copies that it leaves on the stack; `None` if it makes none.
    pub fn new(make: impl FnOnce() -> Option<T>) -> Option<Self> {
        let pages = Pages::zeroed(size_of::<T>());
        wiped_stack::<STACK_BYTES, _>(|| {
            const { assert!(align_of::<T>() <= PAGE_BYTES, "a mapping begins at a page") }
            let value = make()?;
            // SAFETY: the pages have room for a `T` and begin where any `T` may; nothing else is in them.
            unsafe { pages.start().cast::<T>().write(value) };
            Some(())
        })?;
        Some(Self { pages, value: PhantomData })
    }
}

impl<T> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `new` put a `T` there, and only `drop` takes it away.
        unsafe { self.pages.start().cast::<T>().as_ref() }
    }
}

impl<T> Drop for Locked<T> {
    fn drop(&mut self) {
        // SAFETY: `new` put a `T` there, no code has a reference to it any more, and no code looks at it again. Then the pages are overwritten.
        unsafe { self.pages.start().cast::<T>().drop_in_place() };
    }
}

impl<T> fmt::Debug for Locked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Locked(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_value_lives_there_and_ends_once() {
        let counted = Arc::new(());
        let locked = Locked::new(|| Some((Arc::clone(&counted), [7_u128; 20]))).unwrap();
        assert_eq!((locked.1, Arc::strong_count(&counted)), ([7; 20], 2));
        assert_eq!(format!("{locked:?}"), "Locked(..)");
        drop(locked);
        assert_eq!(Arc::strong_count(&counted), 1);
        assert!(Locked::new(|| None::<u8>).is_none());
    }
}
