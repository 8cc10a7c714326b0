//! `luks`: a file whose plain text is a disk.

use std::path::PathBuf;
use std::sync::Arc;

use block::{Blame, Block, Raw, SECTOR_BYTES};
use storage_luks::{Area, Around, Calculation, CipherStorage, Work, unlock};

use super::FormatDriver;
use super::formats::Opening;
use crate::error::OpenError;
use crate::house::House;
use crate::options::OptionError;
use crate::probe::Format;

pub(super) const LUKS: FormatDriver = FormatDriver {
    name: "luks",
    format: Format::Luks,
    open: |opening| Box::pin(async move { Ok(Arc::new(open(opening).await?) as Arc<dyn Block>) }),
};

impl Around for House {
    fn spawn(&self, work: Work) {
        qcow2::Host::spawn(self, work);
    }

    fn calculate(&self, calculation: Calculation) -> Work {
        qcow2::Host::calculate(self, calculation)
    }
}

/// What works on keys uses: the loop of the thread that asks, and its threads for what takes long.
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

async fn open(opening: Opening<'_>) -> Result<Raw, OpenError> {
    let Opening { file, options, secrets, house, .. } = opening;
    let path = || PathBuf::from(file.name());
    let refused = |source| OpenError::Options { path: path(), source };
    let password = secrets.password(file.name(), options.key_secret.as_deref());
    let password = password.map_err(|source| OpenError::Secret { path: path(), source })?;
    let password = password.ok_or_else(|| refused(OptionError::NoPassword))?;
    let unlocked = unlock(&*file, Area::whole(&*file), &password, house).await?;
    let blame = Blame::new(file.name());
    let start = u64::from(unlocked.header.payload_sector) * SECTOR_BYTES;
    if start == 0 {
        let what = "the LUKS header has its disk in another file, which is not supported";
        return Err(blame.unsupported(what).into());
    }
    let plain = CipherStorage::new(file, start, unlocked.cipher(&blame)?, Arc::new(house.clone()));
    Ok(Raw { driver: LUKS.name, ..Raw::new(Arc::new(plain)) })
}
