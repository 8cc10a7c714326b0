//! `luks`: a file whose plain text is a disk. Its LUKS header is in front of the data, or in a file of its own (`header`).

use std::path::PathBuf;
use std::sync::Arc;

use block::{Blame, Block, Raw};
use luks::{DataPlace, open_volume, read_volume};

use super::format_options::LUKS_OPTIONS;
use graph::OpenError;
use graph::drivers::Opening;
use graph::drivers::{FormatDriver, FormatHeader};
use graph::options::OptionError;

pub(super) const LUKS: FormatDriver = FormatDriver {
    name: "luks",
    title: "a LUKS file",
    header: Some(FormatHeader { name: "LUKS", begins: luks::is_luks, required: false }),
    options: LUKS_OPTIONS,
    open: |opening| Box::pin(async move { Ok(Arc::new(open(opening).await?) as Arc<dyn Block>) }),
};

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
