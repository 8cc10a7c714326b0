// Package cowhand gives qcow2 and raw disks in process, through libcowhand. Images stay plain: QEMU opens everything
// that is written here, and the reverse.
package cowhand

/*
#cgo pkg-config: cowhand
#include <cowhand.h>
#include <stdlib.h>
*/
import "C"

import (
	"encoding/json"
	"io"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Error is why a call or a request failed.
type Error struct {
	// Errno is the system's number.
	Errno syscall.Errno
	// Message is in the library's words.
	Message string
}

func (e *Error) Error() string { return e.Message }

// Unwrap lets errors.Is compare with a syscall.Errno.
func (e *Error) Unwrap() error { return e.Errno }

// call does one call of the library. The words for its failure are the thread's, which is kept until they are read.
func call(work func() C.int) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	result := work()
	if result < 0 {
		return 0, &Error{syscall.Errno(-result), C.GoString(C.cowhand_error_message())}
	}
	return int(result), nil
}

// Version is the version of the library.
func Version() string { return C.GoString(C.cowhand_version()) }

// Options are options of a drive by name, such as "cache", "read-only" or "throttling.iops-total". Values are as on
// the command line: numbers in decimal, switches "on" and "off".
type Options map[string]string

// Create makes an image for a disk of size bytes. The format is "qcow2" or "raw". A file that exists is refused with
// EEXIST.
func Create(path, format string, size uint64) error { return create(path, format, size, nil, nil) }

// CreateOverlay makes a qcow2 image that holds what differs from the image called backing, as it is to be named in the
// new one.
func CreateOverlay(path string, size uint64, backing, backingFormat string) error {
	return create(path, "qcow2", size, &backing, &backingFormat)
}

func create(path, format string, size uint64, backing, backingFormat *string) error {
	texts := texts{}
	defer texts.free()
	_, err := call(func() C.int {
		return C.cowhand_create_image(texts.of(path), texts.of(format), C.uint64_t(size), texts.optional(backing),
			texts.optional(backingFormat))
	})
	return err
}

// texts are copies for C of one call.
type texts []unsafe.Pointer

func (t *texts) of(text string) *C.char {
	copied := C.CString(text)
	*t = append(*t, unsafe.Pointer(copied))
	return copied
}

func (t *texts) optional(text *string) *C.char {
	if text == nil {
		return nil
	}
	return t.of(*text)
}

func (t *texts) free() {
	for _, text := range *t {
		C.free(text)
	}
}

// Disk is an open disk. Its methods may be called from any goroutine, and block.
type Disk struct {
	handle *C.cowhand_disk
	close  sync.Once
}

// AddSecret adds the password or key that options call id ("encrypt.key-secret", "key-secret"), for all disks.
func AddSecret(id string, secret []byte) error {
	texts := texts{}
	defer texts.free()
	var first unsafe.Pointer
	if len(secret) > 0 {
		first = unsafe.Pointer(&secret[0])
	}
	_, err := call(func() C.int { return C.cowhand_add_secret(texts.of(id), first, C.size_t(len(secret))) })
	return err
}

// RemoveSecret removes the secret called id; disks that were opened with it stay open.
func RemoveSecret(id string) error {
	texts := texts{}
	defer texts.free()
	_, err := call(func() C.int { return C.cowhand_remove_secret(texts.of(id)) })
	return err
}

// Open opens the image at path; its content decides the format, unless the options name a "driver". A name such as
// "nbd://HOST/EXPORT" is a path, too. With an empty one the option "drive" has the whole drive: "json:{...}".
func Open(path string, options Options) (*Disk, error) { return open(path, options, 0, 0) }

// OpenQueues opens the image at path as Open does, with count queues for size requests each.
func OpenQueues(path string, options Options, count, size uint64) (*Disk, error) {
	return open(path, options, count, size)
}

func open(path string, options Options, queues, size uint64) (*Disk, error) {
	disk, err := prepare(path, options)
	if err != nil {
		return nil, err
	}
	if err := disk.connect(queues, size); err != nil {
		disk.Close()
		return nil, err
	}
	return disk, nil
}

// prepare makes a disk with its properties, which is not open yet.
func prepare(path string, options Options) (*Disk, error) {
	driver := "auto"
	if chosen, isChosen := options["driver"]; isChosen {
		driver = chosen
	}
	texts := texts{}
	defer texts.free()
	disk := &Disk{}
	if _, err := call(func() C.int { return C.cowhand_create(texts.of(driver), &disk.handle) }); err != nil {
		return nil, err
	}
	if err := disk.setAll(path, options); err != nil {
		disk.Close()
		return nil, err
	}
	return disk, nil
}

func (d *Disk) setAll(path string, options Options) error {
	if path != "" {
		if err := d.set("path", path); err != nil {
			return err
		}
	}
	for name, value := range options {
		if name == "driver" {
			continue
		}
		if err := d.set(name, value); err != nil {
			return err
		}
	}
	return nil
}

func (d *Disk) connect(queues, size uint64) error {
	if _, err := call(func() C.int { return C.cowhand_connect(d.handle) }); err != nil || queues == 0 {
		return err
	}
	for name, number := range map[string]uint64{"num-queues": queues, "queue-size": size} {
		texts := texts{}
		_, err := call(func() C.int { return C.cowhand_set_u64(d.handle, texts.of(name), C.uint64_t(number)) })
		texts.free()
		if err != nil {
			return err
		}
	}
	_, err := call(func() C.int { return C.cowhand_start(d.handle) })
	return err
}

func (d *Disk) set(name, value string) error {
	texts := texts{}
	defer texts.free()
	_, err := call(func() C.int { return C.cowhand_set_str(d.handle, texts.of(name), texts.of(value)) })
	return err
}

// Close waits for requests in flight, writes what is in memory, and gives the locks back. With an error something that
// was not flushed may be lost. A second call does nothing.
func (d *Disk) Close() (err error) {
	d.close.Do(func() {
		handle := d.handle
		_, err = call(func() C.int { return C.cowhand_destroy(&handle) })
	})
	return err
}

func (d *Disk) number(name string) (uint64, error) {
	texts := texts{}
	defer texts.free()
	var value C.uint64_t
	_, err := call(func() C.int { return C.cowhand_get_u64(d.handle, texts.of(name), &value) })
	return uint64(value), err
}

func (d *Disk) flag(name string) (bool, error) {
	texts := texts{}
	defer texts.free()
	var value C.bool
	_, err := call(func() C.int { return C.cowhand_get_bool(d.handle, texts.of(name), &value) })
	return bool(value), err
}

// Info is what an open disk is.
type Info struct {
	// Driver is the format of its own image.
	Driver string
	// Chain has the paths of the images, its own first: jobs and extents count them so.
	Chain []string
	// Size is in bytes.
	Size uint64
	// ReadOnly: it takes no writes. Discards: discards give space back.
	ReadOnly, Discards bool
	// RequestAlignment is of which requests are multiples that reach the device as they are; others work too, and cost
	// more. DiscardAlignment is what is given back together.
	RequestAlignment, OptimalIOAlignment, DiscardAlignment uint64
}

// Info is what the disk is, now: a job or a checkpoint changes the chain.
func (d *Disk) Info() (info Info, err error) {
	texts := texts{}
	defer texts.free()
	get := func(name string) func(**C.char) C.int {
		return func(text **C.char) C.int { return C.cowhand_get_str(d.handle, texts.of(name), text) }
	}
	if info.Driver, err = taken(get("driver")); err != nil {
		return Info{}, err
	}
	if err = parsed(&info.Chain, get("chain")); err != nil {
		return Info{}, err
	}
	for name, place := range map[string]*uint64{
		"capacity": &info.Size, "request-alignment": &info.RequestAlignment,
		"optimal-io-alignment": &info.OptimalIOAlignment, "discard-alignment": &info.DiscardAlignment,
	} {
		if *place, err = d.number(name); err != nil {
			return Info{}, err
		}
	}
	for name, place := range map[string]*bool{"read-only": &info.ReadOnly, "discard": &info.Discards} {
		if *place, err = d.flag(name); err != nil {
			return Info{}, err
		}
	}
	return info, nil
}

// Size is the disk's size in bytes, now.
func (d *Disk) Size() (uint64, error) { return d.number("capacity") }

// ReadAt fills p with the bytes at offset. What reaches past the end of the disk fails as a whole; only a read that
// begins there is io.EOF.
func (d *Disk) ReadAt(p []byte, offset int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if size, err := d.Size(); err != nil {
		return 0, err
	} else if offset >= 0 && uint64(offset) >= size {
		return 0, io.EOF
	}
	_, err := call(func() C.int {
		return C.cowhand_read_blocking(d.handle, C.uint64_t(offset), unsafe.Pointer(&p[0]), C.size_t(len(p)))
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteAt writes p at offset. It is durable once a later Flush has returned.
func (d *Disk) WriteAt(p []byte, offset int64) (int, error) { return d.write(p, offset, 0) }

// WriteAtDurable writes p at offset; it is durable when the call returns.
func (d *Disk) WriteAtDurable(p []byte, offset int64) (int, error) {
	return d.write(p, offset, C.COWHAND_REQ_FUA)
}

func (d *Disk) write(p []byte, offset int64, flags C.uint32_t) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	_, err := call(func() C.int {
		return C.cowhand_write_blocking(d.handle, C.uint64_t(offset), unsafe.Pointer(&p[0]), C.size_t(len(p)), flags)
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush makes durable what was written before.
func (d *Disk) Flush() error {
	_, err := call(func() C.int { return C.cowhand_flush_blocking(d.handle) })
	return err
}

// Discard says that a range is of no use any more. A disk that was opened with discard=unmap gives its space back.
func (d *Disk) Discard(offset, length uint64) error {
	_, err := call(func() C.int { return C.cowhand_discard_blocking(d.handle, C.uint64_t(offset), C.uint64_t(length)) })
	return err
}

// ZeroFlags are how zeroes are written.
type ZeroFlags uint32

const (
	// FUA makes the zeroes durable when the call returns.
	FUA ZeroFlags = C.COWHAND_REQ_FUA
	// NoUnmap keeps space reserved.
	NoUnmap ZeroFlags = C.COWHAND_REQ_NO_UNMAP
	// NoFallback fails with EOPNOTSUPP rather than write zeroes one by one.
	NoFallback ZeroFlags = C.COWHAND_REQ_NO_FALLBACK
)

// WriteZeroes makes a range read as zeroes.
func (d *Disk) WriteZeroes(offset, length uint64, flags ZeroFlags) error {
	_, err := call(func() C.int {
		return C.cowhand_write_zeroes_blocking(d.handle, C.uint64_t(offset), C.uint64_t(length), C.uint32_t(flags))
	})
	return err
}

// Extent is a range of a disk in one state.
type Extent struct {
	Offset, Length uint64
	// Depth is which image knows of the range: 0 is the disk's own, 1 its backing image, and so on.
	Depth uint32
	// Present: an image of the chain knows of the range. Data: there are bytes to read. Zero: it reads as zeroes.
	// Hole: no space is behind it in the disk's own file.
	Present, Data, Zero, Hole, Compressed bool
	// FileOffset is where the bytes are in the file of their image, as they are; nil if they are not.
	FileOffset *uint64
}

// extentsMax is how many extents one call of the library is asked for.
const extentsMax = 256

// Map calls visit with the extents of a range, in order and without gaps, until it returns false.
func (d *Disk) Map(offset, length uint64, visit func(Extent) bool) error {
	var found [extentsMax]C.cowhand_extent
	for end := offset + length; offset < end; {
		count, err := call(func() C.int {
			return C.cowhand_extents(d.handle, C.uint64_t(offset), C.uint64_t(end-offset), &found[0], extentsMax)
		})
		if err != nil {
			return err
		}
		if count == 0 {
			return io.ErrNoProgress
		}
		for _, extent := range found[:count] {
			if !visit(extentOf(extent)) {
				return nil
			}
			offset = uint64(extent.offset + extent.len)
		}
	}
	return nil
}

func extentOf(found C.cowhand_extent) Extent {
	has := func(flag C.uint32_t) bool { return found.flags&flag != 0 }
	extent := Extent{
		Offset: uint64(found.offset), Length: uint64(found.len), Depth: uint32(found.depth),
		Present: has(C.COWHAND_EXTENT_PRESENT), Data: has(C.COWHAND_EXTENT_DATA), Zero: has(C.COWHAND_EXTENT_ZERO),
		Hole: has(C.COWHAND_EXTENT_HOLE), Compressed: has(C.COWHAND_EXTENT_COMPRESSED),
	}
	if has(C.COWHAND_EXTENT_FILE_OFFSET) {
		place := uint64(found.file_offset)
		extent.FileOffset = &place
	}
	return extent
}

// Resize changes the size. A smaller one is refused unless shrink is true: what lies beyond is lost.
func (d *Disk) Resize(size uint64, shrink bool) error {
	flags := C.uint32_t(0)
	if shrink {
		flags = C.COWHAND_RESIZE_SHRINK
	}
	_, err := call(func() C.int { return C.cowhand_resize(d.handle, C.uint64_t(size), flags) })
	return err
}

// parsed reads the JSON that a function of the library returns.
func parsed(into any, get func(**C.char) C.int) error {
	var text *C.char
	if _, err := call(func() C.int { return get(&text) }); err != nil {
		return err
	}
	defer C.cowhand_free(text)
	return json.Unmarshal([]byte(C.GoString(text)), into)
}

// Snapshot is an internal snapshot of a qcow2 image.
type Snapshot struct {
	ID, Name string
	Taken    time.Time
	// VMClock is how long the guest had been running.
	VMClock time.Duration
	// Size of the disk at that time; nil in old images.
	Size *uint64
}

// Snapshots lists the internal snapshots, in the order in which they were taken.
func (d *Disk) Snapshots() ([]Snapshot, error) {
	var found []struct {
		ID      string  `json:"id"`
		Name    string  `json:"name"`
		Sec     int64   `json:"date-sec"`
		Nsec    int64   `json:"date-nsec"`
		VMClock uint64  `json:"vm-clock-nsec"`
		Size    *uint64 `json:"size"`
	}
	if err := parsed(&found, func(json **C.char) C.int { return C.cowhand_snapshots(d.handle, json) }); err != nil {
		return nil, err
	}
	var snapshots []Snapshot
	for _, entry := range found {
		taken := time.Unix(entry.Sec, entry.Nsec)
		snapshots = append(snapshots, Snapshot{entry.ID, entry.Name, taken, time.Duration(entry.VMClock), entry.Size})
	}
	return snapshots, nil
}

func (d *Disk) named(name string, work func(*C.char) C.int) error {
	texts := texts{}
	defer texts.free()
	_, err := call(func() C.int { return work(texts.of(name)) })
	return err
}

// CreateSnapshot takes a snapshot of the disk as it is.
func (d *Disk) CreateSnapshot(name string) error {
	return d.named(name, func(name *C.char) C.int { return C.cowhand_create_snapshot(d.handle, name) })
}

// ApplySnapshot goes back to a snapshot; everything written since is lost.
func (d *Disk) ApplySnapshot(idOrName string) error {
	return d.named(idOrName, func(name *C.char) C.int { return C.cowhand_apply_snapshot(d.handle, name) })
}

// DeleteSnapshot deletes a snapshot.
func (d *Disk) DeleteSnapshot(idOrName string) error {
	return d.named(idOrName, func(name *C.char) C.int { return C.cowhand_delete_snapshot(d.handle, name) })
}

// Limits are the limits in force, by QEMU's names.
func (d *Disk) Limits() (limits map[string]uint64, err error) {
	err = parsed(&limits, func(json **C.char) C.int { return C.cowhand_get_limits(d.handle, json) })
	return limits, err
}

// SetLimits puts limits in force instead of all that were; none lifts them.
func (d *Disk) SetLimits(limits map[string]uint64) error {
	texts := texts{}
	defer texts.free()
	// In C's memory: Go's must not point to other memory there.
	size := C.size_t(unsafe.Sizeof(C.cowhand_limit{}))
	list := (*C.cowhand_limit)(C.calloc(C.size_t(len(limits)+1), size))
	defer C.free(unsafe.Pointer(list))
	array, count := unsafe.Slice(list, len(limits)+1), 0
	for name, value := range limits {
		array[count].name, array[count].value = texts.of(name), C.uint64_t(value)
		count++
	}
	_, err := call(func() C.int { return C.cowhand_set_limits(d.handle, list, C.size_t(count)) })
	return err
}

// Figures of one kind of request since the disk was opened.
type Figures struct {
	Requests uint64 `json:"requests"`
	Failed   uint64 `json:"failed"`
	Bytes    uint64 `json:"bytes"`
	TotalNS  uint64 `json:"total-ns"`
	InFlight uint64 `json:"in-flight"`
}

// Statistics of a disk.
type Statistics struct {
	Read        Figures `json:"read"`
	Write       Figures `json:"write"`
	WriteZeroes Figures `json:"write-zeroes"`
	Discard     Figures `json:"discard"`
	Flush       Figures `json:"flush"`
	Status      Figures `json:"status"`
	// IdleNS is the time since the last request ended; nil if there was none.
	IdleNS *uint64 `json:"idle-ns"`
}

// Statistics is what has passed since the disk was opened.
func (d *Disk) Statistics() (statistics Statistics, err error) {
	err = parsed(&statistics, func(json **C.char) C.int { return C.cowhand_statistics(d.handle, json) })
	return statistics, err
}
