//! The keys of `info`'s JSON, for its help: what `tool::info::model` prints.

use tool::medium::MEDIUM_JSON;

/// All of it.
pub const ALL: [&str; 6] = [JSON, SNAPSHOTS_JSON, BITMAPS_JSON, LUKS_JSON, LIMITS_JSON, MEDIUM_JSON];

/// [`tool::info::model::SnapshotInfo`]
pub const SNAPSHOTS_JSON: &str = "\
Of each snapshot:
  id, name                text
  vm-state-size           bytes of the saved state of the machine
  date-sec, date-nsec     when it was taken: seconds since 1970, and nanoseconds
  vm-clock-sec, vm-clock-nsec  how long the machine had run: seconds, and nanoseconds
  icount?                 number of instructions, where they were counted";

/// [`tool::info::model::BitmapInfo`]
pub const BITMAPS_JSON: &str = "\
Of each bitmap:
  name                    text
  flags                   list of text: in-use, auto
  granularity             bytes of the disk for each bit";

/// [`super::ImageInfo`], without what it shares.
const JSON: &str = "\
An object; with --backing-chain a list of them, the top image first:
  filename                text: the image, as it was named
  format                  text
  virtual-size            size of the disk
  actual-size?            space that its file takes; absent if that is not known
  dirty-flag              bool: refcounts may be wrong until the next repair
  cluster-size?           bytes of a cluster; absent of formats without clusters
  encrypted?              bool: absent of images that are not
  backing-filename?       text: the backing file, as the header has it
  full-backing-filename?  text: the same, seen from the image's directory
  backing-filename-format?  text: its format, if the header has it
  snapshots?              list of objects: internal snapshots
  format-specific?        object: what this format alone has
  children                list of objects: the files that it is made of, of each:
  name, info              text: what it is to the image; object: as of the image
  limits?                 object: limits of requests (--limits)
  medium?                 object: properties of the device or file system (--medium)
Of format-specific:
  type                    text: the format
  data                    object: keys of the format, below
Of data, qcow2:
  compat                  text: 0.10 is version 2, 1.1 is version 3
  compression-type        text: zlib or zstd
  lazy-refcounts?, corrupt?, extended-l2?  bool: what the header says; absent of version 2
  refcount-bits           bits of a refcount
  bitmaps?                list of objects: persistent bitmaps
  data-file?              text: the file that has the data
  data-file-raw?          bool: that file is a raw image by itself
  encrypt?                object: format (text, aes or luks), and of luks what the header says
Of data, vmdk:
  cid, parent-cid         numbers that change with the content
  create-type             text: how it is laid out
  extents                 list of objects: parts of the disk, each with filename, format, virtual-
                          size, cluster-size?, compressed? (bool)";

/// [`tool::info::model::LuksInfo`] and [`tool::info::model::Luks2Info`].
const LUKS_JSON: &str = "\
Of data, luks and luks2, and of encrypt:
  cipher-alg, cipher-mode, ivgen-alg  text
  hash-alg?, ivgen-hash-alg?  text
  detached-header         bool: the data is in another file
  uuid                    text: name of the volume
  payload-offset          where the data begins in its file
  master-key-iters        number of iterations of the key's digest
  slots                   list of objects: key slots
  label?, subsystem?      text: names (luks2)
  sequence                number that grows with every change of the header (luks2)
  second-copy?            bool: the first copy of the header is damaged or older (luks2)
  sector-size             bytes that are encrypted together (luks2)
Of each key slot:
  active                  bool: it has a key
  slot                    number (luks2)
  iters?                  number of iterations for its password
  key-offset              where its key material begins
  stripes?                number of stripes of the key
  unsupported?            text: why no password is tried on it (luks2)
  priority?, kdf?         text: prefer, normal or ignore; pbkdf2, argon2i or argon2id (luks2)
  passes?, memory?, lanes?  cost of argon2: passes, bytes, lanes (luks2)";

/// [`tool::info::model::Limits`]
const LIMITS_JSON: &str = "\
Of limits:
  request-alignment       bytes that requests are multiples of
  discard-alignment?, write-zeroes-alignment?  bytes by which discards and zeroes are best aligned
  max-iov                 number of parts of memory in a request
  min-mem-alignment, opt-mem-alignment  bytes by which memory must be, and is best, aligned";
