//! LIST_META_CONTEXT and SET_META_CONTEXT ("Metadata querying").

use super::answers::{Refused, export_name_of, invalid, malformed};
use super::handshake::{Catalogue, Handshake};
use crate::nbd::cursor::{Cursor, Truncated};
use crate::nbd::limits::{CONTEXTS_LISTED_MAX, CONTEXTS_SELECTED_MAX, QUERIES_MAX, STRING_BYTES_MAX};
use crate::nbd::option::put_reply;
use crate::nbd::put::Put;
use crate::nbd::{Context, ContextId, Dialect, ExportInfo, OptionKind, OptionReplyKind, Selected};

impl Handshake {
    pub(super) fn list_meta_context<C: Catalogue>(
        &self,
        data: &[u8],
        catalogue: &C,
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        let (export, queries) = self.queried(data, catalogue)?;
        let wanted =
            |context: &Context| queries.is_empty() || queries.iter().any(|query| context.listed_by(query));
        for context in Context::offered(&export).filter(wanted).take(CONTEXTS_LISTED_MAX) {
            put_context(out, OptionKind::ListMetaContext, 0, &context);
        }
        Ok(())
    }

    /// Replaces the selection; a request that fails leaves none.
    pub(super) fn set_meta_context<C: Catalogue>(
        &mut self,
        data: &[u8],
        catalogue: &C,
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        self.selected = None;
        let (export, queries) = self.queried(data, catalogue)?;
        let mut selected: Vec<Selected> = Vec::new();
        // A query for something that is not there is no error: it is left out of the answer.
        for context in queries.iter().filter_map(|query| Context::find(query, &export)) {
            if selected.iter().any(|earlier| earlier.context == context) {
                continue;
            }
            if selected.len() == CONTEXTS_SELECTED_MAX {
                let message = format!("at most {CONTEXTS_SELECTED_MAX} contexts can be selected");
                return Err((OptionReplyKind::TooBig, message));
            }
            // Ids start at 1 so that a client that never looked at them is found out.
            let id = ContextId::try_from(selected.len() + 1).unwrap_or(ContextId::MAX);
            selected.push(Selected { id, context });
        }
        for Selected { id, context } in &selected {
            put_context(out, OptionKind::SetMetaContext, *id, context);
        }
        self.selected = Some((export.name, selected));
        Ok(())
    }

    fn queried<'a, C: Catalogue>(
        &self,
        data: &'a [u8],
        catalogue: &C,
    ) -> Result<(ExportInfo, Vec<&'a [u8]>), Refused> {
        if self.dialect == Dialect::Simple {
            return Err(invalid("metadata contexts need structured replies"));
        }
        let (name, count, rest) = frame(data).map_err(|Truncated| malformed())?;
        if count > QUERIES_MAX {
            return Err((OptionReplyKind::TooBig, format!("{count} queries; at most {QUERIES_MAX}")));
        }
        let export = catalogue.describe(export_name_of(name)?)?;
        let queries = queries(count, rest).map_err(|Truncated| malformed())?;
        match queries.iter().map(|query| query.len()).max() {
            Some(longest) if longest > STRING_BYTES_MAX => {
                Err(invalid(format!("query has {longest} bytes; at most {STRING_BYTES_MAX}")))
            }
            _ => Ok((export, queries)),
        }
    }
}

fn frame(data: &[u8]) -> Result<(&[u8], u32, &[u8]), Truncated> {
    let mut cursor = Cursor::new(data);
    Ok((cursor.counted_bytes()?, cursor.u32()?, cursor.rest()))
}

fn queries(count: u32, bytes: &[u8]) -> Result<Vec<&[u8]>, Truncated> {
    let mut cursor = Cursor::new(bytes);
    let queries = (0..count).map(|_| cursor.counted_bytes()).collect::<Result<_, _>>()?;
    if cursor.rest().is_empty() { Ok(queries) } else { Err(Truncated) }
}

fn put_context(out: &mut Vec<u8>, option: OptionKind, id: ContextId, context: &Context) {
    let mut data = Vec::new();
    data.put_u32(id);
    data.put(context.name().as_bytes());
    put_reply(out, option, OptionReplyKind::MetaContext, &data);
}
