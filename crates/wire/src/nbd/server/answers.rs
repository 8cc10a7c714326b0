//! What each option is answered with ("Option types").

use super::handshake::{Catalogue, Handshake, HandshakeError, Refusal, Session, Tls};
use crate::nbd::cursor::{Cursor, Truncated};
use crate::nbd::limits::{CONTEXTS_LISTED_MAX, CONTEXTS_SELECTED_MAX, QUERIES_MAX, STRING_BYTES_MAX};
use crate::nbd::option::{put_error, put_reply};
use crate::nbd::put::{Put, cut, len_u32};
use crate::nbd::{
    Context, ContextId, Dialect, ExportFlags, ExportInfo, InfoKind, OptionKind, OptionReplyKind, Selected,
};

pub(super) enum Answer<C> {
    Again,
    StartTls,
    Ready(Session<C>),
    Done,
}

/// An error reply: its kind, and text for humans.
pub(super) type Refused = (OptionReplyKind, String);

pub(super) fn invalid(message: impl Into<String>) -> Refused {
    (OptionReplyKind::Invalid, message.into())
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unknown(reason) => (OptionReplyKind::UnknownExport, reason),
            Refusal::Policy(reason) => (OptionReplyKind::Policy, reason),
            Refusal::Shutdown => (OptionReplyKind::Shutdown, "the server is shutting down".into()),
        }
    }
}

impl Handshake {
    pub(super) fn answer<C: Catalogue>(
        &mut self,
        option: OptionKind,
        data: &[u8],
        catalogue: &C,
        out: &mut Vec<u8>,
    ) -> Result<Answer<C::Chosen>, HandshakeError> {
        match self.grant(option, data, catalogue, out) {
            Ok(answer) => Ok(answer),
            Err((kind, message)) => {
                self.answerable(option, &message)?;
                put_error(out, option, kind, &message);
                Ok(Answer::Again)
            }
        }
    }

    fn grant<C: Catalogue>(
        &mut self,
        option: OptionKind,
        data: &[u8],
        catalogue: &C,
        out: &mut Vec<u8>,
    ) -> Result<Answer<C::Chosen>, Refused> {
        if !self.fixed && option != OptionKind::ExportName {
            return Err(invalid("client did not agree to fixed newstyle"));
        }
        let before_tls = matches!(option, OptionKind::StartTls | OptionKind::Abort);
        if self.tls == Tls::Required && !before_tls {
            self.tls_refusal = Some("it does not use TLS, which is required here");
            return Err((OptionReplyKind::TlsRequired, "this server wants STARTTLS first".into()));
        }
        match option {
            OptionKind::ExportName => return self.export_name(data, catalogue, out).map(Answer::Ready),
            OptionKind::Abort => {
                put_reply(out, option, OptionReplyKind::Ack, &[]);
                return Ok(Answer::Done);
            }
            OptionKind::StartTls => {
                self.start_tls(data)?;
                put_reply(out, option, OptionReplyKind::Ack, &[]);
                return Ok(Answer::StartTls);
            }
            OptionKind::Go => return self.go(data, catalogue, out).map(Answer::Ready),
            OptionKind::List => list(data, catalogue, out)?,
            OptionKind::Info => self.info(data, catalogue, out)?,
            OptionKind::StructuredReply | OptionKind::ExtendedHeaders => self.upgrade(option, data)?,
            OptionKind::ListMetaContext => self.list_meta_context(data, catalogue, out)?,
            OptionKind::SetMetaContext => self.set_meta_context(data, catalogue, out)?,
            OptionKind::Unknown(number) => {
                return Err((OptionReplyKind::Unsupported, format!("option {number} is not known")));
            }
        }
        put_reply(out, option, OptionReplyKind::Ack, &[]);
        Ok(Answer::Again)
    }

    fn start_tls(&mut self, data: &[u8]) -> Result<(), Refused> {
        no_data(data)?;
        match self.tls {
            Tls::Off => {
                self.tls_refusal = Some("it wants TLS, which is not configured here");
                Err((OptionReplyKind::Policy, "TLS is not configured".into()))
            }
            Tls::Active => Err(invalid("the connection is encrypted already")),
            Tls::Allowed | Tls::Required => Ok(()),
        }
    }

    fn upgrade(&mut self, option: OptionKind, data: &[u8]) -> Result<(), Refused> {
        no_data(data)?;
        let wanted =
            if option == OptionKind::ExtendedHeaders { Dialect::Extended } else { Dialect::Structured };
        if self.dialect == Dialect::Extended && wanted == Dialect::Structured {
            let message = "extended headers are in use already";
            return Err((OptionReplyKind::ExtendedHeadersRequired, message.into()));
        }
        if self.dialect == wanted {
            return Err(invalid("this was agreed on already"));
        }
        self.dialect = wanted;
        Ok(())
    }

    fn export_name<C: Catalogue>(
        &mut self,
        data: &[u8],
        catalogue: &C,
        out: &mut Vec<u8>,
    ) -> Result<Session<C::Chosen>, Refused> {
        if self.dialect == Dialect::Extended {
            return Err(invalid("EXPORT_NAME after extended headers; use GO"));
        }
        let session = self.enter(export_name_of(data)?, catalogue)?;
        out.put_u64(session.export.size);
        out.put_u16(session.export.flags.to_wire());
        if !self.no_zeroes {
            out.put(&[0; 124]);
        }
        Ok(session)
    }

    fn info<C: Catalogue>(&self, data: &[u8], catalogue: &C, out: &mut Vec<u8>) -> Result<(), Refused> {
        let (name, wanted) = info_request(data).map_err(|Truncated| malformed())??;
        let export = catalogue.describe(name)?;
        // This reports what an export can do: its contexts are chosen with NBD_OPT_GO.
        put_info(out, OptionKind::Info, &self.as_seen(export, true), &wanted);
        Ok(())
    }

    fn go<C: Catalogue>(
        &mut self,
        data: &[u8],
        catalogue: &C,
        out: &mut Vec<u8>,
    ) -> Result<Session<C::Chosen>, Refused> {
        let (name, wanted) = info_request(data).map_err(|Truncated| malformed())??;
        let session = self.enter(name, catalogue)?;
        put_info(out, OptionKind::Go, &session.export, &wanted);
        put_reply(out, OptionKind::Go, OptionReplyKind::Ack, &[]);
        Ok(session)
    }

    fn enter<C: Catalogue>(&mut self, name: &str, catalogue: &C) -> Result<Session<C::Chosen>, Refused> {
        let (chosen, export) = catalogue.choose(name)?;
        let for_this = self.has_contexts_for(&export);
        let contexts = self.selected.take().filter(|_| for_this).map(|(_, contexts)| contexts);
        let export = self.as_seen(export, for_this);
        Ok(Session { chosen, export, dialect: self.dialect, contexts: contexts.unwrap_or_default() })
    }

    fn has_contexts_for(&self, export: &ExportInfo) -> bool {
        self.selected.as_ref().is_some_and(|(name, contexts)| *name == export.name && !contexts.is_empty())
    }

    /// `export` with the flags that depend on what was agreed.
    fn as_seen(&self, mut export: ExportInfo, has_contexts: bool) -> ExportInfo {
        let filter = self.dialect == Dialect::Extended && has_contexts;
        export.flags = export
            .flags
            .and_if(true, ExportFlags::HAS_FLAGS)
            .and_if(self.dialect >= Dialect::Structured, ExportFlags::DF)
            .and_if(filter, ExportFlags::BLOCK_STATUS_PAYLOAD);
        export
    }
}

fn list<C: Catalogue>(data: &[u8], catalogue: &C, out: &mut Vec<u8>) -> Result<(), Refused> {
    no_data(data)?;
    for (name, description) in catalogue.list() {
        let mut entry = Vec::new();
        entry.put_u32(len_u32(name.as_bytes()));
        entry.put(name.as_bytes());
        entry.put(cut(&description, STRING_BYTES_MAX).as_bytes());
        put_reply(out, OptionKind::List, OptionReplyKind::Server, &entry);
    }
    Ok(())
}

fn no_data(data: &[u8]) -> Result<(), Refused> {
    if data.is_empty() {
        return Ok(());
    }
    Err(invalid(format!("option has {} bytes of data; it takes none", data.len())))
}

pub(super) fn malformed() -> Refused {
    invalid("lengths inside the option disagree with its length")
}

/// A name as the protocol allows it: UTF-8 without NUL, of bounded length.
fn export_name_of(bytes: &[u8]) -> Result<&str, Refused> {
    if bytes.len() > STRING_BYTES_MAX {
        let message = format!("name has {} bytes; at most {STRING_BYTES_MAX}", bytes.len());
        return Err(invalid(message));
    }
    match std::str::from_utf8(bytes) {
        Ok(name) if !name.contains('\0') => Ok(name),
        _ => Err(invalid("name is not UTF-8 without NUL")),
    }
}

/// The data of INFO and GO: a name and the facts that are asked for.
fn info_request(data: &[u8]) -> Result<Result<(&str, Vec<InfoKind>), Refused>, Truncated> {
    let mut cursor = Cursor::new(data);
    let name = cursor.counted_bytes()?;
    let count = cursor.u16()?;
    let (kinds, rest) = cursor.rest().as_chunks::<2>();
    if !rest.is_empty() || kinds.len() != usize::from(count) {
        return Err(Truncated);
    }
    let kinds = kinds.iter().map(|kind| InfoKind::from_wire(u16::from_be_bytes(*kind))).collect();
    Ok(export_name_of(name).map(|name| (name, kinds)))
}

fn put_info(out: &mut Vec<u8>, option: OptionKind, export: &ExportInfo, wanted: &[InfoKind]) {
    let mut fact = |kind: InfoKind, body: &dyn Fn(&mut Vec<u8>)| {
        let mut data = Vec::new();
        data.put_u16(kind.to_wire());
        body(&mut data);
        put_reply(out, option, OptionReplyKind::Info, &data);
    };
    if wanted.contains(&InfoKind::Name) {
        fact(InfoKind::Name, &|data| data.put(cut(&export.name, STRING_BYTES_MAX).as_bytes()));
    }
    if wanted.contains(&InfoKind::Description) && !export.description.is_empty() {
        fact(InfoKind::Description, &|data| data.put(cut(&export.description, STRING_BYTES_MAX).as_bytes()));
    }
    fact(InfoKind::BlockSize, &|data| {
        data.put_u32(export.blocks.minimum);
        data.put_u32(export.blocks.preferred);
        data.put_u32(export.blocks.maximum);
    });
    fact(InfoKind::Export, &|data| {
        data.put_u64(export.size);
        data.put_u16(export.flags.to_wire());
    });
}

impl Handshake {
    fn list_meta_context<C: Catalogue>(
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
    fn set_meta_context<C: Catalogue>(
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
