//! `qcow2` and `raw`: blocks made of files.

use std::path::PathBuf;
use std::sync::Arc;

use block::{Block, Raw, StartGuard};
use qcow2::{Files, Qcow2};
use qcow2_layout::CryptMethod;
use storage::Storage;

use super::format_options::{QCOW2_OPTIONS, RAW_OPTIONS};
use graph::OpenError;
use graph::drivers::{FormatDriver, FormatHeader, Opening};
use graph::of_raw;
use graph::options::{Discard, OptionError};
use graph::probe::{Probed, QCOW_MAGIC, probe};

pub(super) const QCOW2: FormatDriver = FormatDriver {
    name: "qcow2",
    title: "a qcow2 image",
    header: Some(FormatHeader {
        name: "qcow2",
        begins: |start| start.starts_with(&QCOW_MAGIC) && !matches!(start.get(4..8), Some([0, 0, 0, 0 | 1])),
        required: true,
    }),
    options: QCOW2_OPTIONS,
    open: |opening| Box::pin(async move { Ok(Arc::new(open_qcow2(opening).await?) as Arc<dyn Block>) }),
};

pub(super) const RAW: FormatDriver = FormatDriver {
    name: "raw",
    title: "a raw image",
    header: None,
    options: RAW_OPTIONS,
    open: |opening| Box::pin(async move { Ok(of_raw(raw_layer(opening)?)) }),
};

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
    let engine = options.qcow2.for_engine(writable, options.discard == Discard::Unmap);
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
