//! Lists as long as an image says: they grow where there is memory, and fail where there is none.

use std::collections::TryReserveError;

/// Puts `item` at the end of `list`.
pub(crate) fn push<T>(list: &mut Vec<T>, item: T) -> Result<(), TryReserveError> {
    list.try_reserve(1)?;
    list.push(item);
    Ok(())
}

/// A list of all `items`.
pub(crate) fn collect<T>(items: impl Iterator<Item = T>) -> Result<Vec<T>, TryReserveError> {
    let mut list = Vec::new();
    list.try_reserve(items.size_hint().0)?;
    for item in items {
        push(&mut list, item)?;
    }
    Ok(list)
}
