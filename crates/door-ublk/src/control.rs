//! Devices of the kernel: made, found again, started, stopped and deleted. Everything here blocks.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::abi::{
    ANY_NUMBER, Control, Encoding, FEATURES_BYTES, INFO_BYTES, Info, Parameters, State, feature,
};
use crate::kernel;
use crate::limits::{
    LOOK, NODE_PATIENCE, QUEUE_DEPTH, QUEUES_FOUND_MAX, RECOVERY_PATIENCE, REQUEST_BYTES_MAX,
};

/// Where the driver takes commands.
const CONTROL_DEVICE: &str = "/dev/ublk-control";

/// Why a disk is no block device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The driver is not there, or not for us.
    #[error(
        "/dev/ublk-control cannot be opened; it takes root, Linux 6.0 or later, and the driver: `modprobe ublk_drv`"
    )]
    NoDriver(#[source] io::Error),
    /// A device of another process has the number.
    #[error("/dev/ublkb{0} is a device of another disk or program; give another number, or auto")]
    Foreign(u32),
    /// Its server is at work.
    #[error("/dev/ublkb{number} is served by process {server}; give another number, or auto")]
    InUse {
        /// Its number.
        number: u32,
        /// The process.
        server: i32,
    },
    /// It was made by a kernel that cannot give it to another server.
    #[error(
        "/dev/ublkb{0} was left by a server that is gone, and this kernel cannot recover it (Linux 6.1 can)"
    )]
    NotRecoverable(u32),
    /// The driver refuses.
    #[error("the kernel refuses {what}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// Its reason.
        #[source]
        source: io::Error,
    },
    /// The device by which the kernel asks.
    #[error("{path} cannot be opened")]
    NoNode {
        /// Its name.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
}

/// Which number a device is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// One that is free.
    Auto,
    /// This one: if a server that is gone left it, the device is recovered.
    Given(u32),
}

/// A device of ours that waits for its queues.
#[derive(Debug)]
pub(crate) struct Device {
    driver: kernel::ControlDevice,
    encoding: Encoding,
    info: Info,
    /// It was another server's, and its programs wait.
    is_recovered: bool,
    life: Mutex<Life>,
}

/// What this process did with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Programs do not use it yet.
    Waiting,
    /// It was started.
    Started,
    /// It is being stopped, or was.
    Stopped,
}

/// What is done about a device that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Add,
    /// It never began, or had ended.
    Replace,
    Recover,
}

/// Decides by what the kernel knows of a device, if there is one.
fn plan(found: Option<&Info>, mark: u64) -> Result<Plan, DeviceError> {
    match found {
        None => Ok(Plan::Add),
        Some(info) if info.mark != mark => Err(DeviceError::Foreign(info.number)),
        Some(info) => match info.state {
            State::Dead => Ok(Plan::Replace),
            _ if info.features & feature::USER_RECOVERY == 0 => Err(DeviceError::NotRecoverable(info.number)),
            State::Live | State::Quiesced | State::Unknown(_) => Ok(Plan::Recover),
        },
    }
}

/// By which the device of a disk is known again.
fn mark(disk_name: &str) -> u64 {
    const OURS: u64 = 0x636f_7768 << 32;
    // FNV-1a: the same in every version of this program.
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    OURS | u64::from(disk_name.bytes().fold(0x811c_9dc5, step))
}

impl Device {
    /// Makes the device of the disk called `disk_name`, with `queues` queues, or takes it over from a server that is gone.
    ///
    /// # Errors
    /// When there is no driver, or the number is in use. A device that was made is deleted then.
    pub(crate) fn open(
        number: Number,
        disk_name: &str,
        queues: u16,
        parameters: &Parameters,
    ) -> Result<Self, DeviceError> {
        let driver = File::options().read(true).write(true).open(CONTROL_DEVICE);
        let driver = driver.and_then(kernel::ControlDevice::new).map_err(DeviceError::NoDriver)?;
        let mut features = [0; FEATURES_BYTES];
        let asked = driver.command(Control::GetFeatures.code(Encoding::Ioctl), 0, &mut features, 0);
        let encoding = if asked.is_ok() { Encoding::Ioctl } else { Encoding::Plain };
        let features = u64::from_ne_bytes(features) & (feature::UPDATE_SIZE | feature::USER_COPY);
        let info = Info {
            queues,
            depth: QUEUE_DEPTH,
            state: State::Dead,
            buffer_bytes: REQUEST_BYTES_MAX,
            number: match number {
                Number::Auto => ANY_NUMBER,
                Number::Given(number) => number,
            },
            server: 0,
            features: features | feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE,
            mark: mark(disk_name),
        };
        let mut device =
            Self { driver, encoding, info, is_recovered: false, life: Mutex::new(Life::Waiting) };
        match plan(device.find()?.as_ref(), info.mark)? {
            Plan::Add => device.add(parameters)?,
            Plan::Replace => {
                device.ask(Control::Delete, &mut [], 0)?;
                device.add(parameters)?;
            }
            Plan::Recover => device.take_over()?,
        }
        Ok(device)
    }

    /// What programs open.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/dev/ublkb{}", self.info.number).into()
    }

    pub(crate) fn info(&self) -> &Info {
        &self.info
    }

    pub(crate) fn encoding(&self) -> Encoding {
        self.encoding
    }

    pub(crate) fn is_recovered(&self) -> bool {
        self.is_recovered
    }

    fn ask(&self, what: Control, data: &mut [u8], value: u64) -> Result<(), DeviceError> {
        self.try_ask(what, data, value).map_err(|source| DeviceError::Refused { what: what.name(), source })
    }

    fn try_ask(&self, what: Control, data: &mut [u8], value: u64) -> io::Result<()> {
        self.driver.command(what.code(self.encoding), self.info.number, data, value)
    }

    /// What the kernel knows of the device, if it has one of the number.
    fn find(&self) -> Result<Option<Info>, DeviceError> {
        if self.info.number == ANY_NUMBER {
            return Ok(None);
        }
        let mut bytes = [0; INFO_BYTES];
        match self.try_ask(Control::GetInfo, &mut bytes, 0) {
            Ok(()) => Ok(Some(Info::decode(&bytes))),
            Err(error) if is(&error, Errno::NODEV) => Ok(None),
            Err(source) => Err(DeviceError::Refused { what: Control::GetInfo.name(), source }),
        }
    }

    fn add(&mut self, parameters: &Parameters) -> Result<(), DeviceError> {
        let mut bytes = self.info.encode();
        self.ask(Control::Add, &mut bytes, 0)?;
        self.info = Info::decode(&bytes);
        // The kernel may have made buffers smaller.
        let request_sectors_max = parameters.request_sectors_max.min(self.info.buffer_bytes / 512);
        let mut parameters = Parameters { request_sectors_max, ..*parameters }.encode();
        self.ask(Control::SetParameters, &mut parameters, 0).inspect_err(|_| self.delete())
    }

    /// Waits until the kernel has seen that the device's server is gone, and takes its place.
    fn take_over(&mut self) -> Result<(), DeviceError> {
        let until = Instant::now() + RECOVERY_PATIENCE;
        loop {
            match self.try_ask(Control::StartRecovery, &mut [], 0) {
                Ok(()) => break,
                Err(error) if is(&error, Errno::BUSY) && Instant::now() < until => {}
                Err(source) => {
                    let server = self.find()?.map_or(0, |info| info.server);
                    let number = self.info.number;
                    return Err(match is(&source, Errno::BUSY) {
                        true => DeviceError::InUse { number, server },
                        false => DeviceError::Refused { what: Control::StartRecovery.name(), source },
                    });
                }
            }
            std::thread::sleep(LOOK);
        }
        let gone = || io::Error::from(Errno::NODEV);
        let what = Control::GetInfo.name();
        self.info = self.find()?.ok_or_else(|| DeviceError::Refused { what, source: gone() })?;
        self.is_recovered = true;
        if self.info.queues > QUEUES_FOUND_MAX {
            return Err(DeviceError::NotRecoverable(self.info.number));
        }
        Ok(())
    }

    /// Opens the device by which the kernel asks.
    ///
    /// # Errors
    /// When it does not appear.
    pub(crate) fn open_queues(&self) -> Result<File, DeviceError> {
        let path = PathBuf::from(format!("/dev/ublkc{}", self.info.number));
        let until = Instant::now() + NODE_PATIENCE;
        loop {
            match File::options().read(true).write(true).open(&path) {
                Ok(file) => return Ok(file),
                // Who makes its name may need a moment.
                Err(error) if error.kind() == io::ErrorKind::NotFound && Instant::now() < until => {}
                Err(source) => return Err(DeviceError::NoNode { path, source }),
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Lets programs use the device. Ends when all queues ask for requests.
    ///
    /// # Errors
    /// When the kernel refuses, or the device is stopped meanwhile.
    pub(crate) fn start(&self) -> Result<(), DeviceError> {
        let what = if self.is_recovered { Control::EndRecovery } else { Control::Start };
        self.ask(what, &mut [], u64::from(std::process::id()))?;
        let mut life = self.life.lock();
        if *life == Life::Waiting {
            *life = Life::Started;
        }
        Ok(())
    }

    /// Takes the device from programs: what is in flight is answered before, what comes later fails. All that waits in the kernel's memory is
    /// written first, for the device and whatever lies on it: afterwards it could not be.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn stop(&self) -> Result<(), DeviceError> {
        rustix::fs::sync();
        self.stop_at_once()
    }

    /// As [`Device::stop`], without the writing.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn stop_at_once(&self) -> Result<(), DeviceError> {
        // A change of the size now is waited for; none begins later.
        *self.life.lock() = Life::Stopped;
        self.ask(Control::Stop, &mut [], 0)
    }

    /// Whether the data of requests is copied by us, and not to and from memory that the kernel is given before there are any. Always so from Linux
    /// 6.5 on, but for a device that a server made which knew only that.
    pub(crate) fn copies_data(&self) -> bool {
        self.info.features & feature::USER_COPY != 0
    }

    /// Whether the size can change while programs use the device.
    pub(crate) fn can_be_resized(&self) -> bool {
        self.info.features & feature::UPDATE_SIZE != 0
    }

    /// Sectors that programs see, of a device that was recovered.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn sectors(&self) -> Result<u64, DeviceError> {
        let mut bytes = Parameters::asked();
        self.ask(Control::GetParameters, &mut bytes, 0)?;
        Ok(Parameters::sectors_reported(&bytes))
    }

    /// Gives the device another size. Nothing is done while it is not started: the kernel has no block device then, and may not look for it before it
    /// changes its size.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn resize(&self, sectors: u64) -> Result<(), DeviceError> {
        let life = self.life.lock();
        match *life {
            Life::Started => self.ask(Control::UpdateSize, &mut [], sectors),
            Life::Waiting | Life::Stopped => Ok(()),
        }
    }

    /// The device is forgotten when its queues are closed. Linux before 6.9 keeps it; the next server of the number deletes it.
    pub(crate) fn delete_when_closed(&self) {
        if let Err(error) = self.ask(Control::DeleteLater, &mut [], 0) {
            tracing::debug!(%error, device = %self.path().display(), "the device stays behind");
        }
    }

    /// The device is forgotten, and its number free. Waits until no queue is open any more.
    pub(crate) fn delete(&self) {
        if let Err(error) = self.ask(Control::Delete, &mut [], 0) {
            tracing::warn!(%error, device = %self.path().display(), "the device stays behind");
        }
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    Errno::from_io_error(error) == Some(errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(state: State, features: u64, mark: u64) -> Info {
        Info { queues: 1, depth: 1, state, buffer_bytes: 4096, number: 3, server: 9, features, mark }
    }

    #[test]
    fn only_a_device_of_the_same_disk_is_recovered_or_replaced() {
        let (own, other) = (mark("a"), mark("b"));
        let can = feature::USER_RECOVERY;
        assert_eq!(plan(None, own).ok(), Some(Plan::Add));
        assert_eq!(plan(Some(&found(State::Quiesced, can, own)), own).ok(), Some(Plan::Recover));
        assert_eq!(plan(Some(&found(State::Live, can, own)), own).ok(), Some(Plan::Recover));
        assert_eq!(plan(Some(&found(State::Dead, can, own)), own).ok(), Some(Plan::Replace));
        let error = plan(Some(&found(State::Quiesced, can, other)), own).expect_err("it is another disk's");
        assert!(matches!(error, DeviceError::Foreign(3)));
        let error = plan(Some(&found(State::Live, 0, own)), own).expect_err("it cannot be recovered");
        assert!(matches!(error, DeviceError::NotRecoverable(3)));
    }

    /// The kernel was asked for the size of a block device that was not there yet, or not any more.
    #[test]
    fn the_size_is_changed_only_of_a_device_that_was_started_and_not_stopped() {
        let driver = File::open(std::env::current_exe().expect("this program"))
            .expect("a file that takes no commands");
        let driver = kernel::ControlDevice::new(driver).expect("io_uring");
        let info = found(State::Dead, feature::UPDATE_SIZE, 0);
        let device = Device {
            driver,
            encoding: Encoding::Ioctl,
            info,
            is_recovered: false,
            life: Mutex::new(Life::Waiting),
        };
        assert!(device.can_be_resized() && device.resize(8).is_ok(), "asked before the start");
        *device.life.lock() = Life::Started;
        assert!(matches!(device.resize(8), Err(DeviceError::Refused { .. })), "not asked");
        assert!(device.stop_at_once().is_err(), "it is no device");
        assert!(device.resize(8).is_ok(), "asked after the stop");
    }

    #[test]
    fn a_mark_is_the_same_in_every_version() {
        assert_eq!(mark("disk"), 0x636f_7768_4560_40a4);
        assert_ne!(mark("disk"), mark("disk1"));
    }
}
