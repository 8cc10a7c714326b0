//! `luks`: a file whose plain text is a disk. Its LUKS header is in front of the data, or in a file of its own (`header`).

use std::path::PathBuf;
use std::sync::Arc;

use block::{Blame, Block, Raw};
use storage_luks::{Around, Calculation, DataPlace, Work, open_volume, read_volume};

use super::formats::Opening;
use super::{FormatDriver, FormatHeader};
use crate::background::BackgroundTasks;
use crate::error::OpenError;
use crate::options::{OptionError, table};

pub(super) const LUKS: FormatDriver = FormatDriver {
    name: "luks",
    title: "a LUKS file",
    header: Some(FormatHeader { name: "LUKS", begins: storage_luks::is_luks, required: false }),
    options: table::LUKS,
    open: |opening| Box::pin(async move { Ok(Arc::new(open(opening).await?) as Arc<dyn Block>) }),
};

impl Around for BackgroundTasks {
    fn spawn(&self, work: Work) {
        qcow2::Host::spawn(self, work);
    }

    fn calculate(&self, calculation: Calculation) -> Work {
        qcow2::Host::calculate(self, calculation)
    }
}

/// What works on keys, and a check, use: the loop of the thread that asks, and its threads for what takes long.
#[derive(Clone, Copy, Debug)]
pub struct OnLoop;

impl Around for OnLoop {
    fn spawn(&self, work: Work) {
        reactor::spawn(work).detach();
    }

    fn calculate(&self, calculation: Calculation) -> Work {
        Box::pin(reactor::blocking(calculation))
    }
}

impl qcow2::Host for OnLoop {
    fn spawn(&self, work: Work) {
        reactor::spawn(work).detach();
    }

    fn calculate(&self, calculation: Calculation) -> Work {
        Box::pin(reactor::blocking(calculation))
    }
}

async fn open(opening: Opening<'_>) -> Result<Raw, OpenError> {
    let Opening { file, luks_header, options, secrets, tasks, .. } = opening;
    let (header_file, place) = match &luks_header {
        Some(header) => (&**header, DataPlace::OtherFile),
        None => (&*file, DataPlace::BehindHeader),
    };
    let header = read_volume(header_file).await?;
    let name = header_file.name();
    header.check_place(place).map_err(|error| Blame::new(name).unsupported(error.to_string()))?;
    if let Some(advice) = header.damaged_copy() {
        tracing::warn!("{name}: {advice}");
    }
    let path = || PathBuf::from(file.name());
    let refused = |source| OpenError::Options { path: path(), source };
    let password = secrets.password(file.name(), options.key_secret.as_deref());
    let password = password.map_err(|source| OpenError::Secret { path: path(), source })?;
    let password = password.ok_or_else(|| refused(OptionError::NoPassword))?;
    let fixed = header.is_fixed();
    let opened = open_volume(header_file, header, &password, tasks).await?;
    let plain = opened.plain(Arc::clone(&file), Arc::new(tasks.clone()))?;
    let mut raw = Raw::new(Arc::new(plain));
    (raw.driver, raw.fixed) = (LUKS.name, fixed);
    Ok(raw)
}
