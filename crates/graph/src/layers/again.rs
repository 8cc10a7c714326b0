//! A layer opened once more while it is open: for writing, for reading again, by another path.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use block::Block;
use parking_lot::Mutex;

use super::{Layer, LayerFiles, Written, written};
use crate::background::BackgroundTasks;
use crate::bitmaps_file::{self, with_bitmaps};
use crate::drivers::Opening;
use crate::error::OpenError;
use crate::extents;
use crate::file::{OpenFile, by_user};
use crate::open_rules::OpenRules;
use crate::options::LayerOptions;
use crate::probe::Format;

impl LayerFiles {
    /// Opens the layer once more while it is open as `now` is, over the same layer below, under the locks that its files have. Costs what
    /// opening it costs.
    ///
    /// # Errors
    /// As opening it; also for writing when its refcounts must be repaired first, which is not done under requests.
    pub(crate) async fn open_again(
        &self,
        now: &Layer,
        writable: bool,
        rules: &OpenRules,
    ) -> Result<Layer, OpenError> {
        let file = self.file.open_again(now.block.name(), &self.options.file, &self.options, writable);
        let file = file.await?;
        self.open_again_of(now, file, &self.options, (writable, None), rules).await
    }

    /// As [`LayerFiles::open_again`], as it is open now, with a file in memory for its bitmaps: they are gone when it is closed.
    ///
    /// # Errors
    /// Also when there is no memory for the file.
    pub(crate) async fn open_again_with_bitmaps(
        &self,
        now: &Layer,
        rules: &OpenRules,
    ) -> Result<Layer, OpenError> {
        let writable = !now.block.capabilities().read_only;
        let file =
            self.file.open_again(now.block.name(), &self.options.file, &self.options, writable).await?;
        let memory = bitmaps_file::open_in_memory(&self.options, now.block.size()).await?;
        self.open_again_of(now, file, &self.options, (writable, Some(memory)), rules).await
    }

    /// As [`LayerFiles::open_again`] for reading, by another path of the layer's file, which the layer is called by then.
    ///
    /// # Errors
    /// Also when the path leads to another file.
    pub(crate) async fn open_again_at(
        &self,
        now: &Layer,
        path: &Path,
        rules: &OpenRules,
    ) -> Result<Layer, OpenError> {
        let source = by_user(path, &rules.fd_sets, false)?;
        if !self.file.is_same_file(&source) {
            let source = std::io::Error::other("it is another file than the layer's");
            return Err(OpenError::Find { path: path.to_owned(), source });
        }
        let mut options = self.options.clone();
        if options.file.filename.is_some() {
            options.file.filename = Some(path.to_owned());
        }
        let name = path.display().to_string();
        let file = self.file.open_under(source, &name, &options.file, &options, false).await?;
        self.open_again_of(now, file, &options, (false, None), rules).await
    }

    async fn open_again_of(
        &self,
        now: &Layer,
        file: OpenFile,
        options: &LayerOptions,
        (writable, memory): (bool, Option<OpenFile>),
        rules: &OpenRules,
    ) -> Result<Layer, OpenError> {
        let Self { format, data, luks_header, vmdk, .. } = self;
        let header = match *format {
            Format::Qcow2 => Some(qcow2::read_header(&*file.storage).await?),
            _ => None,
        };
        written::check_repaired(header.as_ref().filter(|_| writable), now.block.name())?;
        let data = match data {
            Some(data) => Some(data.open_again(&data.name(), &options.data_file, options, writable).await?),
            None => None,
        };
        let luks_header = match luks_header {
            Some(header) => {
                Some(header.open_again(&header.name(), &options.luks_header, options, false).await?)
            }
            None => None,
        };
        let tasks = BackgroundTasks::new(Arc::clone(&rules.map_budget));
        let (vmdk, vmdk_origins) = extents::open_again(vmdk.as_ref(), options).await?;
        let (data, data_origin) = data.map(|data| (data.storage, data.origin)).unzip();
        let (luks_header, luks_origin) = luks_header.map(|header| (header.storage, header.origin)).unzip();
        let (disk_file, data_file) = (Arc::clone(&file.storage), data.clone());
        let opening = Opening {
            file: file.storage,
            data,
            luks_header,
            vmdk,
            backing: now.block.below(),
            options,
            header: header.as_ref(),
            writable,
            secrets: &rules.secrets,
            tasks: &tasks,
        };
        let block = opening.open(*format).await?;
        // Bitmaps in memory may be made of a disk that is only read.
        let takes_bitmaps = writable || memory.is_some();
        let bitmaps = match memory {
            Some(memory) => Some(memory),
            None => self.bitmaps_again(options, &*block, writable, rules).await?,
        };
        let block =
            Box::pin(with_bitmaps(block, &disk_file, (bitmaps.as_ref(), takes_bitmaps), &tasks)).await?;
        let (bitmaps, bitmaps_origin) = bitmaps.map(|bitmaps| (bitmaps.storage, bitmaps.origin)).unzip();
        let written = Written { file: disk_file, data: data_file, bitmaps };
        let (options, format) = (options.clone(), *format);
        let (file, data, luks_header) = (file.origin, data_origin, luks_origin);
        let files = Self {
            format,
            options,
            file,
            data,
            luks_header,
            vmdk: vmdk_origins,
            bitmaps: bitmaps_origin,
            written,
            hint: Mutex::default(),
        };
        Ok(Layer {
            block,
            identity: now.identity.clone(),
            tasks,
            closes_below: false,
            own: Mutex::new(now.own.lock().clone()),
            by_name: Mutex::new(now.by_name.lock().clone()),
            writers: Mutex::new(*now.writers.lock()),
            files: Some(files),
            compressing: OnceLock::new(),
        })
    }
    async fn bitmaps_again(
        &self,
        options: &LayerOptions,
        block: &dyn Block,
        writable: bool,
        rules: &OpenRules,
    ) -> Result<Option<OpenFile>, OpenError> {
        match &self.bitmaps {
            Some(bitmaps) => {
                let name = bitmaps.name();
                bitmaps.open_again(&name, &options.bitmaps, options, writable).await.map(Some)
            }
            None => Box::pin(bitmaps_file::open_file(options, block, writable, &rules.fd_sets)).await,
        }
    }
}
