//! `amend` of a LUKS file: its key slots, which is all of it that changes.

use std::error::Error;

use graph::OnLoop;
use graph::options::{DiskOptions, OptionError};
use graph::probe::Format;
use graph::{OpenError, Secrets, open_bare, open_luks_header};
use luks::{Area, VolumeHeader, read_volume, unlock};
use tool::amend::keys::{Change, KeyOptions};

/// Whether `options` mean a LUKS file: they say so, or its first bytes do.
///
/// # Errors
/// When it cannot be opened.
pub async fn is_meant(options: &DiskOptions) -> Result<bool, OpenError> {
    Ok(format_of(options).await? == Format::Luks)
}

/// The format of the image that `options` mean: they say it, or its first bytes do.
///
/// # Errors
/// When it cannot be opened.
pub async fn format_of(options: &DiskOptions) -> Result<Format, OpenError> {
    if let Some(format) = options.layer.format {
        return Ok(format);
    }
    let mut options = options.clone();
    options.layer.read_only = true;
    let format = open_bare(&options).await?.format;
    let refused = |source| OpenError::Options { path: options.filename.clone(), source };
    options.layer.check_format(format).map_err(refused)?;
    Ok(format)
}

/// Changes keys as the `-o` arguments `texts` ask for; the last one is removed only if that is `forced`.
///
/// # Errors
/// When the header is of version 2, no password opens the disk, or the change cannot be.
///
/// # After a crash
/// The old key slots or the new ones.
pub async fn amend(options: &DiskOptions, texts: &[String], forced: bool) -> Result<(), Box<dyn Error>> {
    let Some(change) = KeyOptions::parse(texts)?.change("")? else { return Ok(()) };
    let image = open_luks_header(options).await?;
    let file = &*image.file;
    if matches!(read_volume(file).await?, VolumeHeader::Luks2(_)) {
        return Err(LUKS2_KEYS.into());
    }
    change_keys(file, &change, options.layer.key_secret.as_deref(), forced).await
}

/// Changes keys only with a password that opens the disk, as for an image.
async fn change_keys(
    file: &dyn storage::Storage,
    change: &Change,
    key_secret: Option<&str>,
    forced: bool,
) -> Result<(), Box<dyn Error>> {
    let password = Secrets::default().password(file.name(), key_secret)?.ok_or(OptionError::NoPassword)?;
    unlock(file, Area::whole(file), &password, &OnLoop).await?;
    change.make(file, Area::whole(file), key_secret, forced).await
}

const LUKS2_KEYS: &str = "the LUKS header is of version 2, whose key slots are only read here; cryptsetup luksAddKey, luksChangeKey and \
    luksKillSlot change them";
