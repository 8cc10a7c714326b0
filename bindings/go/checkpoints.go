package cowhand

/*
#include <cowhand.h>
#include <stdlib.h>
*/
import "C"

import (
	"time"
	"unsafe"
)

// Checkpoint is a checkpoint of a disk or of a fork, or a layer that stays because others need it.
type Checkpoint struct {
	ID string `json:"id"`
	// Name is empty where it has none: then it is called by its ID.
	Name string `json:"name"`
	// Disk is the file name of the disk that it was taken of.
	Disk string `json:"disk"`
	// Parent is the layer that it is backed by, if it is.
	Parent string            `json:"parent"`
	Taken  time.Time         `json:"-"`
	Labels map[string]string `json:"labels"`
	// Size is that of the disk at that time, Allocated what its file takes.
	Size      uint64 `json:"size"`
	Allocated uint64 `json:"allocated"`
	// Users are file names of disks and layers that are backed by it.
	Users []string `json:"users"`
	// Deleted says that it goes when nothing needs it.
	Deleted bool `json:"deleted"`
	// Changed says why it cannot be used any more.
	Changed string `json:"changed"`
}

// Removed are layers that go, and deleted checkpoints whose layers stay.
type Removed struct {
	Layers []string      `json:"layers"`
	Bytes  uint64        `json:"bytes"`
	Needed []NeededLayer `json:"needed"`
}

// NeededLayer is the layer of a deleted checkpoint, with the file names of what is backed by it.
type NeededLayer struct {
	ID    string   `json:"id"`
	Users []string `json:"users"`
}

// Forget is which checkpoints without a name are forgotten. By default none is.
type Forget struct {
	// Keep is which stay, such as "hourly:24,daily:7"; all where it is empty.
	Keep string
	// MaxDepth is the number of layers below the disk at most; 0 is no limit.
	MaxDepth uint32
	// MaxWaste is the percentage of layers that may be useless before they are merged; nil: all are merged.
	MaxWaste *uint32
	// Speed is in bytes a second; 0 is no limit.
	Speed uint64
	// ListOnly changes nothing.
	ListOnly bool
	// Save makes Keep, MaxDepth and MaxWaste the policy of the lineage, which its servers follow after each checkpoint, and
	// which counts where none of the three is given; without them it takes that policy away.
	Save bool
}

// Forgotten is what a policy came to.
type Forgotten struct {
	Removed
	Checkpoints []string       `json:"forgotten"`
	Merged      []MergedLayers `json:"merged"`
	// TooDeep is the number of layers below the disk where that stays above the limit; otherwise 0.
	TooDeep int `json:"too-deep"`
	// Job merges; nil where all was only listed.
	Job *Job `json:"-"`
}

// MergedLayers become one.
type MergedLayers struct {
	Into   string   `json:"into"`
	Layers []string `json:"layers"`
	Bytes  uint64   `json:"bytes"`
}

// Publish is where a checkpoint is uploaded, and how.
type Publish struct {
	// Target is s3://BUCKET/FOLDER/NAME.
	Target string
	// Parent is an image of the lineage in the same folder of which unchanged chunks are taken, or "none"; one is looked
	// for where it is empty.
	Parent string
	// KeySecret is the secret that holds the key of an encrypted image.
	KeySecret string
	// ChunkSize is in bytes; 0 is that of the image that is there, or 1 MiB.
	ChunkSize uint64
	// Uncompressed sends chunks as they are.
	Uncompressed bool
	// Force also writes to a store that cannot detect another upload to the same name at the same time.
	Force bool
	// Speed is in bytes of the disk a second; 0 is no limit.
	Speed uint64
}

// Push is where a disk is uploaded as it is at one moment, and how.
type Push struct {
	// Target is s3://BUCKET/FOLDER/NAME.
	Target string
	// Bitmap is empty, or one of the disk's that has recorded all changes since the disk was pushed to the target: only what
	// it has as changed is read, and the rest is taken from the image that is there. It is not cleared.
	Bitmap string
	// KeySecret is the secret that holds the key of an encrypted image.
	KeySecret string
	// ChunkSize is in bytes; 0 is that of the image that is there, or 1 MiB.
	ChunkSize uint64
	// Uncompressed sends chunks as they are.
	Uncompressed bool
	// Force also writes to a store that cannot detect another upload to the same name at the same time.
	Force bool
	// Speed is in bytes of the disk a second; 0 is no limit.
	Speed uint64
}

// Published is a checkpoint on its way to a store.
type Published struct {
	ID string `json:"id"`
	// Image is the name in the store that stays this checkpoint's, once the job has ended.
	Image string `json:"image"`
	Job   *Job   `json:"-"`
}

// Restored is a disk that begins as a published checkpoint.
type Restored struct {
	// Image is the name in the store that stays this checkpoint's.
	Image string `json:"image"`
	// Backing is the backing file of the disk: Open needs it as the option "allow-name".
	Backing string `json:"backing"`
	Size    uint64 `json:"size"`
}

// Says is what one of two disks says of a range in which they may differ.
type Says uint32

const (
	// Data in a layer that only this one has.
	Data Says = C.COWHAND_DIFFERENCE_DATA
	// Zero is the same of zeroes.
	Zero Says = C.COWHAND_DIFFERENCE_ZERO
	// Shared is what the layers say that both have.
	Shared Says = C.COWHAND_DIFFERENCE_SHARED
	// PastEnd is behind the end.
	PastEnd Says = C.COWHAND_DIFFERENCE_NOTHING
)

// Difference is a range in which a checkpoint and another one, or the disk, may differ.
type Difference struct {
	Offset, Length    uint64
	Checkpoint, Other Says
}

// taken gives a text of the library's, which is released.
func taken(work func(**C.char) C.int) (string, error) {
	var text *C.char
	if _, err := call(func() C.int { return work(&text) }); err != nil {
		return "", err
	}
	defer C.cowhand_free(text)
	return C.GoString(text), nil
}

// filled is nil where the text is empty.
func filled(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// Checkpoint seals the disk as it is, while it is in use; it continues in a new overlay. The name may be empty. Gives the
// ID.
func (d *Disk) Checkpoint(name string, labels map[string]string) (string, error) {
	texts := texts{}
	defer texts.free()
	// In C's memory: Go's must not point to other memory there.
	list := (**C.char)(C.calloc(C.size_t(len(labels)+1), C.size_t(unsafe.Sizeof((*C.char)(nil)))))
	defer C.free(unsafe.Pointer(list))
	array, count := unsafe.Slice(list, len(labels)+1), 0
	for key, value := range labels {
		array[count] = texts.of(key + "=" + value)
		count++
	}
	return taken(func(id **C.char) C.int {
		return C.cowhand_checkpoint(d.handle, texts.optional(filled(name)), list, C.size_t(count), id)
	})
}

// Checkpoints lists those of the disk and its forks, the oldest first.
func (d *Disk) Checkpoints() ([]Checkpoint, error) {
	var found []struct {
		Checkpoint
		Sec  int64 `json:"date-sec"`
		Nsec int64 `json:"date-nsec"`
	}
	if err := parsed(&found, func(json **C.char) C.int { return C.cowhand_checkpoints(d.handle, json) }); err != nil {
		return nil, err
	}
	var checkpoints []Checkpoint
	for _, entry := range found {
		entry.Taken = time.Unix(entry.Sec, entry.Nsec)
		checkpoints = append(checkpoints, entry.Checkpoint)
	}
	return checkpoints, nil
}

// Rollback has the disk continue from a checkpoint, and gives the ID of what it was. The guest must not use it meanwhile.
func (d *Disk) Rollback(checkpoint string) (string, error) {
	texts := texts{}
	defer texts.free()
	return taken(func(left **C.char) C.int { return C.cowhand_rollback(d.handle, texts.of(checkpoint), left) })
}

// Fork makes a disk at path, beside this one, that begins as a checkpoint is; with a count above 0 so many, with a number
// before the extension.
func (d *Disk) Fork(checkpoint, path string, count uint32) error {
	texts := texts{}
	defer texts.free()
	_, err := call(func() C.int {
		return C.cowhand_fork(d.handle, texts.of(checkpoint), texts.of(path), C.uint32_t(count))
	})
	return err
}

// Differences calls visit with each range in which a checkpoint and another one, or the disk where other is empty, may
// differ, in order, until that says false.
func (d *Disk) Differences(checkpoint, other string, visit func(Difference) bool) error {
	texts := texts{}
	defer texts.free()
	one, two := texts.of(checkpoint), texts.optional(filled(other))
	var found [256]C.cowhand_difference
	for offset := uint64(0); ; {
		count, err := call(func() C.int {
			return C.cowhand_differences(d.handle, one, two, C.uint64_t(offset), &found[0], C.size_t(len(found)))
		})
		if err != nil || count == 0 {
			return err
		}
		for _, entry := range found[:count] {
			length := uint64(entry.len)
			if !visit(Difference{uint64(entry.offset), length, Says(entry.checkpoint), Says(entry.other)}) {
				return nil
			}
			offset = uint64(entry.offset) + length
		}
	}
}

func listOnly(only bool) C.uint32_t {
	if only {
		return C.COWHAND_LIST_ONLY
	}
	return 0
}

// DeleteCheckpoint deletes a checkpoint, or lists what would go; a layer that others need stays, without a name.
func (d *Disk) DeleteCheckpoint(checkpoint string, only bool) (removed Removed, err error) {
	texts := texts{}
	defer texts.free()
	err = parsed(&removed, func(json **C.char) C.int {
		return C.cowhand_delete_checkpoint(d.handle, texts.of(checkpoint), listOnly(only), json)
	})
	return removed, err
}

// CollectLayers removes layers that nothing needs any more, or lists them; with unnamed also checkpoints without a name.
func (d *Disk) CollectLayers(unnamed, only bool) (removed Removed, err error) {
	flags := listOnly(only)
	if unnamed {
		flags |= C.COWHAND_COLLECT_UNNAMED
	}
	err = parsed(&removed, func(json **C.char) C.int { return C.cowhand_collect_layers(d.handle, flags, json) })
	return removed, err
}

// Forget forgets checkpoints that a policy does not keep, and begins a job that merges layers while the disk is in use.
func (d *Disk) Forget(policy Forget) (forgotten Forgotten, err error) {
	texts := texts{}
	defer texts.free()
	waste := C.uint32_t(C.COWHAND_ANY_WASTE)
	if policy.MaxWaste != nil {
		waste = C.uint32_t(*policy.MaxWaste)
	}
	var flags C.uint32_t
	if policy.Save {
		flags = C.COWHAND_SAVE_POLICY
	}
	forget := func(job, json unsafe.Pointer) C.int {
		return C.cowhand_forget(d.handle, texts.optional(filled(policy.Keep)), C.uint32_t(policy.MaxDepth), waste,
			flags, C.uint64_t(policy.Speed), (**C.cowhand_job)(job), (**C.char)(json))
	}
	if policy.ListOnly {
		err = parsed(&forgotten, func(json **C.char) C.int { return forget(nil, unsafe.Pointer(json)) })
		return forgotten, err
	}
	forgotten.Job, err = begun(&forgotten, func(job **C.cowhand_job, json **C.char) C.int {
		return forget(unsafe.Pointer(job), unsafe.Pointer(json))
	})
	return forgotten, err
}

// begun gives a job that work begins, and what the library says of it.
func begun(found any, work func(**C.cowhand_job, **C.char) C.int) (*Job, error) {
	var text *C.char
	job, err := begin(func(job **C.cowhand_job) C.int { return work(job, &text) })
	if err != nil {
		return nil, err
	}
	return job, parsed(found, func(json **C.char) C.int {
		*json = text
		return 0
	})
}

// Publish begins to upload a checkpoint to an object store, while the disk is in use; only what the store lacks is sent.
func (d *Disk) Publish(checkpoint string, publish Publish) (published Published, err error) {
	texts := texts{}
	defer texts.free()
	published.Job, err = begun(&published, func(job **C.cowhand_job, json **C.char) C.int {
		return C.cowhand_publish(d.handle, texts.of(checkpoint), texts.of(publish.Target),
			texts.optional(filled(publish.Parent)), texts.optional(filled(publish.KeySecret)),
			C.uint64_t(publish.ChunkSize), uploadFlags(publish.Uncompressed, publish.Force), C.uint64_t(publish.Speed),
			job, json)
	})
	return published, err
}

// Push begins to upload the disk as it is when the call returns to an object store, while it is in use.
func (d *Disk) Push(push Push) (*Job, error) {
	texts := texts{}
	defer texts.free()
	return begin(func(job **C.cowhand_job) C.int {
		return C.cowhand_push(d.handle, texts.of(push.Target), texts.optional(filled(push.Bitmap)),
			texts.optional(filled(push.KeySecret)), C.uint64_t(push.ChunkSize),
			uploadFlags(push.Uncompressed, push.Force), C.uint64_t(push.Speed), job)
	})
}

func uploadFlags(uncompressed, force bool) (flags C.uint32_t) {
	if uncompressed {
		flags |= C.COWHAND_PUBLISH_UNCOMPRESSED
	}
	if force {
		flags |= C.COWHAND_PUBLISH_FORCE
	}
	return flags
}

// Restore makes a disk at path that begins as a published checkpoint: what is read is fetched, and Stream fetches the rest.
// at is one of the checkpoints below source, or empty; keySecret is empty where the image is not encrypted.
func Restore(path, source, at, keySecret string) (restored Restored, err error) {
	texts := texts{}
	defer texts.free()
	err = parsed(&restored, func(json **C.char) C.int {
		return C.cowhand_restore(texts.of(path), texts.of(source), texts.optional(filled(at)),
			texts.optional(filled(keySecret)), json)
	})
	return restored, err
}
