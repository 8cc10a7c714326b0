//! The reply to a BLOCK_STATUS.

use nbd_wire::{
    ALLOCATION_HOLE, ALLOCATION_ZERO, BITMAP_DIRTY, Context, Descriptor, Dialect, ErrorCode, Selected,
    block_status,
};

use crate::export::Export;
use crate::limits::STATUS_EXTENTS_MAX;

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) dialect: Dialect,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    /// At least 1.
    pub(crate) len: u64,
    /// One extent of each context is enough.
    pub(crate) one: bool,
    /// At least one.
    pub(crate) contexts: Vec<Selected>,
}

/// Asks `disk` and gives the whole reply.
pub(crate) async fn answer(disk: &dyn Export, question: &Question) -> Result<Vec<u8>, ErrorCode> {
    let Question { dialect, cookie, offset, one, .. } = *question;
    let extents_max = if one { 1 } else { (STATUS_EXTENTS_MAX / question.contexts.len().max(1)).max(1) };
    let mut reply = Vec::new();
    for (at, Selected { id, context }) in question.contexts.iter().enumerate() {
        let descriptors = describe(disk, context, question, extents_max).await?;
        let is_last = at + 1 == question.contexts.len();
        block_status(&mut reply, dialect, (cookie, offset), (*id, is_last), &descriptors);
    }
    Ok(reply)
}

/// Extents of one context from the question's offset on, neighbours that are alike joined.
async fn describe(
    disk: &dyn Export,
    context: &Context,
    question: &Question,
    extents_max: usize,
) -> Result<Vec<Descriptor>, ErrorCode> {
    let end = question.offset + question.len;
    let mut at = question.offset;
    let mut descriptors: Vec<Descriptor> = Vec::new();
    while at < end {
        let (len, flags) = look(disk, context, at, end - at).await?;
        if len == 0 {
            tracing::error!(?context, at, "disk describes an extent of no bytes");
            return Err(ErrorCode::Io);
        }
        let len = len.min(end - at);
        let is_full = descriptors.len() == extents_max;
        match descriptors.last_mut() {
            Some(last) if last.flags == flags => last.len += len,
            _ if is_full => break,
            _ => descriptors.push(Descriptor { len, flags }),
        }
        at += len;
    }
    Ok(descriptors)
}

async fn look(disk: &dyn Export, context: &Context, offset: u64, len: u64) -> Result<(u64, u64), ErrorCode> {
    match context {
        Context::Allocation => {
            let extent = disk.block_status(offset, len).await?;
            let hole = if extent.hole { ALLOCATION_HOLE } else { 0 };
            let zero = if extent.zero { ALLOCATION_ZERO } else { 0 };
            Ok((extent.len, hole | zero))
        }
        Context::AllocationDepth => {
            let layer = disk.allocation_depth(offset, len).await?;
            Ok((layer.len, u64::from(layer.depth)))
        }
        Context::Bitmap(bitmap) => {
            let status = disk.bitmap_status(bitmap, offset, len).await?;
            Ok((status.len, if status.dirty { BITMAP_DIRTY } else { 0 }))
        }
    }
}
