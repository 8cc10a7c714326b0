//! `qcow2` and `raw`: blocks made of files.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use block::{Block, Raw, StartGuard};
use qcow2::{Files, Qcow2};
use qcow2_layout::{CryptMethod, Header};
use storage::Storage;

use super::window::of_raw;
use super::{FORMATS, FormatDriver, FormatHeader};
use crate::background::BackgroundTasks;
use crate::error::OpenError;
use crate::extents::OpenVmdk;
use crate::options::{LayerOptions, OptionError, table};
use crate::probe::{Format, Probed, probe};
use crate::secrets::Secrets;

/// An image of a chain, about to become a block.
#[derive(Debug)]
pub(crate) struct Opening<'a> {
    pub(crate) file: Arc<dyn Storage>,
    /// The file of its data, where that is another one.
    pub(crate) data: Option<Arc<dyn Storage>>,
    /// The file of its LUKS header, where that is another one.
    pub(crate) luks_header: Option<Arc<dyn Storage>>,
    /// Descriptor and extents of a vmdk image.
    pub(crate) vmdk: Option<OpenVmdk>,
    /// What lies below it.
    pub(crate) backing: Option<Arc<dyn Block>>,
    pub(crate) options: &'a LayerOptions,
    /// Of a qcow2 image.
    pub(crate) header: Option<&'a Header>,
    /// It may be written.
    pub(crate) writable: bool,
    /// Where passwords are.
    pub(crate) secrets: &'a Secrets,
    pub(crate) tasks: &'a BackgroundTasks,
}

/// A block that is being opened.
pub(crate) type OpeningFuture<'a> = Pin<Box<dyn Future<Output = Result<Arc<dyn Block>, OpenError>> + 'a>>;

/// The first bytes of all versions of qcow; the version follows.
pub(crate) const QCOW_MAGIC: [u8; 4] = *b"QFI\xfb";

pub(super) const QCOW2: FormatDriver = FormatDriver {
    name: "qcow2",
    title: "a qcow2 image",
    header: Some(FormatHeader {
        name: "qcow2",
        begins: |start| start.starts_with(&QCOW_MAGIC) && !matches!(start.get(4..8), Some([0, 0, 0, 0 | 1])),
        required: true,
    }),
    options: table::QCOW2,
    open: |opening| Box::pin(async move { Ok(Arc::new(open_qcow2(opening).await?) as Arc<dyn Block>) }),
};

pub(super) const RAW: FormatDriver = FormatDriver {
    name: "raw",
    title: "a raw image",
    header: None,
    options: table::RAW,
    open: |opening| Box::pin(async move { Ok(of_raw(raw_layer(opening)?)) }),
};

/// The driver of a format: each has one.
pub(crate) fn format(format: Format) -> &'static FormatDriver {
    FORMATS.get(format.place()).copied().unwrap_or(&RAW)
}

fn raw_layer(Opening { file, options, .. }: Opening<'_>) -> Result<Raw, OpenError> {
    let window = options.raw.window(file.length()).map_err(|source| {
        let path = PathBuf::from(file.name());
        OpenError::Options { path, source }
    })?;
    let mut raw = Raw::part(file, window.offset, window.size);
    raw.fixed = window.fixed;
    if options.raw.protect_start {
        raw.start = Some(Arc::new(StartGuard::new(|start| probe(start) != Probed::Nothing)));
    }
    Ok(raw)
}

async fn open_qcow2(opening: Opening<'_>) -> Result<Qcow2, OpenError> {
    let Opening { file, data, backing, options, header, writable, secrets, tasks, luks_header: _, vmdk: _ } =
        opening;
    let path = || PathBuf::from(file.name());
    if let (Some(asked), Some(header)) = (options.encryption, header)
        && asked.method() != header.crypt
    {
        let source = OptionError::NotEncrypted { asked: asked.name() };
        return Err(OpenError::Options { path: path(), source });
    }
    let id = options.key_secret.as_deref();
    // The image says whether there is a password to be asked for.
    let password = match header.is_some_and(|header| header.crypt != CryptMethod::None) {
        true => secrets.password(file.name(), id),
        false => id.map_or(Ok(None), |id| secrets.unneeded(id)),
    };
    let password = password.map_err(|source| OpenError::Secret { path: path(), source })?;
    let engine = options.qcow2.for_engine(writable, options.discard);
    if engine.writable && header.is_some_and(qcow2::is_dirty) {
        repair(&*file).await?;
    }
    let files = Files { file, data, backing };
    let host = Arc::new(tasks.clone());
    Ok(match password {
        Some(password) => Box::pin(Qcow2::open_encrypted(files, &password, engine, host)).await?,
        None => Box::pin(Qcow2::open(files, engine, host)).await?,
    })
}

/// An image whose writer died has wrong refcounts (lazy refcounts): they are rebuilt before the
/// first write.
async fn repair(file: &dyn Storage) -> Result<(), OpenError> {
    let path = PathBuf::from(file.name());
    tracing::warn!("{}: the image was not closed; repairing it", path.display());
    match qcow2::check(file, qcow2::Repair::All, &mut |_| ()).await {
        Ok(report) if report.is_clean() => Ok(()),
        Ok(report) => {
            let reason = format!("{} corruptions and {} leaks remain", report.corruptions, report.leaks);
            Err(OpenError::Repair { path, reason })
        }
        Err(error) => Err(OpenError::Repair { path, reason: error.to_string() }),
    }
}
