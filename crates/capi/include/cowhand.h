/*
 * cowhand: qcow2 and raw disks for virtual machine monitors, in process.
 *
 * Made from crates/capi/src by cbindgen. Do not edit.
 *
 * The life of a disk: cowhand_create, properties, cowhand_connect (opens the image), properties of queues,
 * cowhand_start (makes the queues), requests, cowhand_destroy (closes the image).
 *
 * Errors. A function that returns int returns a number of at least 0, or a negative errno. The words for the last
 * failure of a thread are in cowhand_error_message. A completion has its own number and words.
 *
 * Handles. A handle is valid until its disk is destroyed, that of a job until cowhand_job_destroy. Every function
 * refuses a null handle, one of another type and one that was destroyed with -EBADF, and never follows it.
 *
 * Threads. A disk may be used by any number of threads at a time. A queue is used by one thread at a time; a second
 * one gets -EBUSY. The library starts threads of its own and installs no signal handler. After fork() only the
 * parent may use its disks.
 *
 * Memory. Buffers of cowhand_read, cowhand_write, cowhand_readv and cowhand_writev belong to the request until its
 * completion was taken, or until cowhand_destroy of the disk has returned. They may be a guest's memory. Arrays of
 * iovec, names and texts are read before the call returns. Texts that a function returns through char ** are
 * released with cowhand_free.
 */


#ifndef COWHAND_H
#define COWHAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define COWHAND_VERSION_MAJOR 0
#define COWHAND_VERSION_MINOR 1


/**
 * A smaller size is meant: what lies beyond it is lost.
 */
#define COWHAND_RESIZE_SHRINK 1

/**
 * The request is durable when it completes. Of writes and of zeroes.
 */
#define COWHAND_REQ_FUA 1

/**
 * Space stays reserved. Of zeroes.
 */
#define COWHAND_REQ_NO_UNMAP 2

/**
 * Fails with -EOPNOTSUPP rather than write zeroes one by one. Of zeroes.
 */
#define COWHAND_REQ_NO_FALLBACK 4

/**
 * An image of the chain knows of the range, be it data or zeroes.
 */
#define COWHAND_EXTENT_PRESENT 1

/**
 * There are bytes to read.
 */
#define COWHAND_EXTENT_DATA 2

/**
 * It reads as zeroes, as far as maps and file systems know.
 */
#define COWHAND_EXTENT_ZERO 4

/**
 * No space is behind it in the disk's own file, reserved space included.
 */
#define COWHAND_EXTENT_HOLE 8

/**
 * The bytes are compressed.
 */
#define COWHAND_EXTENT_COMPRESSED 16

/**
 * file_offset is where the bytes are in the file of their image, as they are.
 */
#define COWHAND_EXTENT_FILE_OFFSET 32

/**
 * A mirror or a backup copies all that the disk reads as.
 */
#define COWHAND_COPY_EVERYTHING 0

/**
 * It copies what the disk's own image holds, for a target over the same backing file.
 */
#define COWHAND_COPY_TOP 1

/**
 * It copies nothing but what is written from now on.
 */
#define COWHAND_COPY_NOTHING 2

/**
 * A write completes when the disk and the mirror's target have it, from the beginning.
 */
#define COWHAND_MIRROR_SYNCHRONOUS 1

/**
 * A write whose old content cannot be copied fails, rather than the backup.
 */
#define COWHAND_BACKUP_BREAK_WRITES 1

/**
 * In place of an image's number: the lowest of the chain (commit), or none (stream).
 */
#define COWHAND_LOWEST 4294967295

/**
 * What would go is listed, and nothing changes.
 */
#define COWHAND_LIST_ONLY 1

/**
 * Checkpoints without a name go, too, where nothing is backed by them.
 */
#define COWHAND_COLLECT_UNNAMED 2

/**
 * The policy becomes the lineage's.
 */
#define COWHAND_SAVE_POLICY 4

/**
 * Layers are merged whatever they waste.
 */
#define COWHAND_ANY_WASTE 4294967295

/**
 * Data, in a layer that only this one of the two has.
 */
#define COWHAND_DIFFERENCE_DATA 0

/**
 * Zeroes, likewise.
 */
#define COWHAND_DIFFERENCE_ZERO 1

/**
 * What the layers say that both have.
 */
#define COWHAND_DIFFERENCE_SHARED 2

/**
 * The range is behind the end.
 */
#define COWHAND_DIFFERENCE_NOTHING 3

/**
 * Chunks are not compressed; otherwise they are as in the image that is there, or by zstd.
 */
#define COWHAND_PUBLISH_UNCOMPRESSED 1

/**
 * Also a store is written to that cannot detect another upload to the same name at the same time.
 */
#define COWHAND_PUBLISH_FORCE 2

/**
 * A disk.
 */
typedef struct cowhand_disk cowhand_disk;

/**
 * A job on a disk.
 */
typedef struct cowhand_job cowhand_job;

/**
 * A queue of requests, used by one thread at a time.
 */
typedef struct cowhand_queue cowhand_queue;

/**
 * How a request ended.
 */
typedef struct cowhand_completion {
    /**
     * The number that it was submitted with.
     */
    uint64_t user_data;
    /**
     * Null, or the words for a failure. They are valid until the next cowhand_do_io of the queue.
     */
    const char *message;
    /**
     * 0, or a negative errno.
     */
    int32_t ret;
    /**
     * 0.
     */
    uint32_t reserved;
} cowhand_completion;

/**
 * A range of a disk in one state.
 */
typedef struct cowhand_extent {
    /**
     * First byte.
     */
    uint64_t offset;
    /**
     * Bytes, never 0.
     */
    uint64_t len;
    /**
     * Valid with COWHAND_EXTENT_FILE_OFFSET, otherwise 0.
     */
    uint64_t file_offset;
    /**
     * Which image knows of the range: 0 is the disk's own, 1 its backing image, and so on.
     */
    uint32_t depth;
    /**
     * Bits COWHAND_EXTENT_....
     */
    uint32_t flags;
} cowhand_extent;

/**
 * A limit.
 */
typedef struct cowhand_limit {
    /**
     * QEMU's name of it, such as "iops-total", "bps-read" or "iops-total-max".
     */
    const char *name;
    /**
     * Requests, bytes or seconds.
     */
    uint64_t value;
} cowhand_limit;

/**
 * How far a job is.
 */
typedef struct cowhand_job_info {
    /**
     * Where it is in its life, in QEMU's words: "running", "ready", "concluded" and others. Never changes.
     */
    const char *status;
    /**
     * Bytes that are done.
     */
    uint64_t done;
    /**
     * Bytes that are to be done in all; they may become more while the disk is written.
     */
    uint64_t total;
    /**
     * Bytes a second at most; 0 is no limit.
     */
    uint64_t speed;
} cowhand_job_info;

/**
 * A range in which a checkpoint and another one, or the disk, may differ.
 */
typedef struct cowhand_difference {
    /**
     * First byte.
     */
    uint64_t offset;
    /**
     * Bytes, never 0.
     */
    uint64_t len;
    /**
     * COWHAND_DIFFERENCE_...: what the checkpoint says of it.
     */
    uint32_t checkpoint;
    /**
     * And the other one, or the disk.
     */
    uint32_t other;
} cowhand_difference;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library, "0.1.0". It never changes while the program runs.
 */
const char *cowhand_version(void);

/**
 * The words for the last call that failed on this thread; empty if none has. They are valid until the next call
 * on this thread fails.
 */
const char *cowhand_error_message(void);

/**
 * Releases a text that a function has returned through a char **. A null pointer is allowed.
 */
void cowhand_free(char *text);

/**
 * Makes an image for a disk of size bytes, with QEMU's defaults. format is "qcow2" or "raw". backing is null, or the
 * name of a backing file as it is to be stored, and backing_format its format; a relative name begins at the new
 * image's directory. A file that exists is refused with -EEXIST. Durable when the call returns.
 */
int cowhand_create_image(const char *path,
                         const char *format,
                         uint64_t size,
                         const char *backing,
                         const char *backing_format);

/**
 * Changes the size of an open disk to size bytes, while it is in use. What is added reads as zeroes. A smaller size is
 * refused unless flags has COWHAND_RESIZE_SHRINK. Durable when the call returns.
 */
int cowhand_resize(struct cowhand_disk *disk,
                   uint64_t size,
                   uint32_t flags);

/**
 * Makes a disk, which opens nothing yet. driver is the image's format: "qcow2", "raw", "luks", or one that is only read
 * ("vdi", "vpc", "vmdk", "qcow", "vhdx"); or "auto", with which the content decides. *disk becomes its handle.
 */
int cowhand_create(const char *driver,
                   struct cowhand_disk **disk);

/**
 * Opens the image with its backing chain, under QEMU's file locks. Blocks; an image that another process has locked is
 * waited for, up to two seconds. After a failure properties may be changed and the call be repeated.
 */
int cowhand_connect(struct cowhand_disk *disk);

/**
 * Makes the queues, as many as the property num-queues says. Only requests through queues need it.
 */
int cowhand_start(struct cowhand_disk *disk);

/**
 * The queue with this number, of a disk that was started. Numbers begin with 0.
 */
int cowhand_get_queue(struct cowhand_disk *disk, uint32_t index, struct cowhand_queue **queue);

/**
 * Ends a disk: waits for all its requests (limits hold none of them back any more), closes the image, gives its
 * locks back, and ends the handles of the disk and of its queues. *disk becomes null. Returns how closing went: with
 * an error something that was not flushed may be lost, and the disk is ended all the same. A disk that is null
 * already is no error.
 */
int cowhand_destroy(struct cowhand_disk **disk);

/**
 * Sets a property to a text.
 *
 * Before cowhand_connect: "path" (the image; what begins as a driver's name, such as "nbd://HOST/EXPORT", is that, unless
 * "./" stands before it), or instead of it "drive" (a drive as cowhand serve takes it, such as "json:{...}"); "allow-path"
 * and "allow-name" (directories, and NBD servers or images in stores, to which names inside images may lead; each call
 * adds one); and every option of a drive by its name, such as "cache", "read-only", "discard", "l2-cache-size" or
 * "throttling.iops-total". Wrong names and values of options are found by cowhand_connect.
 *
 * Before cowhand_start: "num-queues" (1 to 1024, 1 unless set) and "queue-size" (requests in flight in a queue, 1 to
 * 32768, 256 unless set).
 */
int cowhand_set_str(struct cowhand_disk *disk,
                    const char *name,
                    const char *value);

/**
 * Sets a property that is yes or no: "on" or "off", of "discard" "unmap" or "ignore".
 */
int cowhand_set_bool(struct cowhand_disk *disk, const char *name, bool value);

/**
 * Sets a property to a number.
 */
int cowhand_set_u64(struct cowhand_disk *disk, const char *name, uint64_t value);

/**
 * Gets a property that is a text; the caller releases it with cowhand_free. "driver" and "path" always; what was set
 * of "drive" and of an option; of an open disk "chain", the paths of its images as a list in JSON, the disk's own
 * first. "driver" of an open disk is what its content has decided.
 */
int cowhand_get_str(struct cowhand_disk *disk,
                    const char *name,
                    char **value);

/**
 * Gets a property that is yes or no: "connected", "started"; of an open disk "read-only" and "discard" (whether
 * discards give space back).
 */
int cowhand_get_bool(struct cowhand_disk *disk,
                     const char *name,
                     bool *value);

/**
 * Gets a property that is a number: "num-queues", "queue-size"; of an open disk "capacity" (bytes, now),
 * "request-alignment" (requests that are multiples of it reach the device as they are; others work too, and cost
 * more), "optimal-io-alignment" and "discard-alignment" (what is given back together).
 */
int cowhand_get_u64(struct cowhand_disk *disk,
                    const char *name,
                    uint64_t *value);

/**
 * Submits a read of len bytes at offset into buf. user_data comes back with its completion. After a failed read any
 * byte of buf may have changed. flags must be 0. Returns -EAGAIN while the queue is full: take completions first.
 */
int cowhand_read(struct cowhand_queue *queue,
                 uint64_t offset,
                 void *buf,
                 size_t len,
                 uint64_t user_data,
                 uint32_t flags);

/**
 * Submits a write of len bytes from buf at offset. Durable once a flush that was submitted after its completion has
 * completed, or with COWHAND_REQ_FUA when it completes.
 */
int cowhand_write(struct cowhand_queue *queue,
                  uint64_t offset,
                  const void *buf,
                  size_t len,
                  uint64_t user_data,
                  uint32_t flags);

/**
 * As cowhand_read, into iovcnt buffers one after the other; at most 1024.
 */
int cowhand_readv(struct cowhand_queue *queue,
                  uint64_t offset,
                  const struct iovec *iov,
                  int iovcnt,
                  uint64_t user_data,
                  uint32_t flags);

/**
 * As cowhand_write, from iovcnt buffers one after the other; at most 1024.
 */
int cowhand_writev(struct cowhand_queue *queue,
                   uint64_t offset,
                   const struct iovec *iov,
                   int iovcnt,
                   uint64_t user_data,
                   uint32_t flags);

/**
 * Submits a flush: what completed before it was submitted is durable when it completes. flags must be 0.
 */
int cowhand_flush(struct cowhand_queue *queue, uint64_t user_data, uint32_t flags);

/**
 * Submits a discard: the bytes are of no use any more. A disk that was opened with the property discard gives their
 * space back. flags must be 0.
 */
int cowhand_discard(struct cowhand_queue *queue,
                    uint64_t offset,
                    uint64_t len,
                    uint64_t user_data,
                    uint32_t flags);

/**
 * Submits a request after which the bytes read as zeroes. Space may be given back, unless flags has
 * COWHAND_REQ_NO_UNMAP.
 */
int cowhand_write_zeroes(struct cowhand_queue *queue,
                         uint64_t offset,
                         uint64_t len,
                         uint64_t user_data,
                         uint32_t flags);

/**
 * Takes completions, at most max, in the order in which requests ended; returns their count. Waits until there are
 * min, or as many as are in flight if these are fewer, or until timeout_ns nanoseconds have passed; a negative timeout
 * is none. With a min of 0 it never waits. After a timeout there may be fewer than min, also none.
 */
int cowhand_do_io(struct cowhand_queue *queue,
                  struct cowhand_completion *completions,
                  int min,
                  int max,
                  int64_t timeout_ns);

/**
 * An eventfd that is readable exactly while there are completions to be taken; taking them resets it. It belongs to
 * the queue: do not read, write or close it. It is made by the first call, and costs a system call for each batch of
 * completions from then on.
 */
int cowhand_completion_fd(struct cowhand_queue *queue);

/**
 * Reads len bytes at offset into buf; blocks until that is done. All of them are read, or the call fails.
 */
int cowhand_read_blocking(struct cowhand_disk *disk, uint64_t offset, void *buf, size_t len);

/**
 * Writes len bytes of buf at offset; blocks until that is done. flags: 0 or COWHAND_REQ_FUA.
 */
int cowhand_write_blocking(struct cowhand_disk *disk,
                           uint64_t offset,
                           const void *buf,
                           size_t len,
                           uint32_t flags);

/**
 * Makes durable what has completed before; blocks until that is done.
 */
int cowhand_flush_blocking(struct cowhand_disk *disk);

/**
 * As cowhand_discard; blocks until it is done.
 */
int cowhand_discard_blocking(struct cowhand_disk *disk, uint64_t offset, uint64_t len);

/**
 * As cowhand_write_zeroes; blocks until it is done.
 */
int cowhand_write_zeroes_blocking(struct cowhand_disk *disk, uint64_t offset, uint64_t len, uint32_t flags);

/**
 * Gives the extents from offset on, in order and without gaps, of len bytes; returns their count. There are at most
 * max, and at most 4096 a call: the next call begins where the last extent ends. Asks maps and file systems, reads no
 * data, and blocks until that is done.
 */
int cowhand_extents(struct cowhand_disk *disk,
                    uint64_t offset,
                    uint64_t len,
                    struct cowhand_extent *extents,
                    size_t max);

/**
 * Puts limits in force at once, instead of all that were; a count of 0 lifts them. After a failure nothing has
 * changed.
 */
int cowhand_set_limits(struct cowhand_disk *disk,
                       const struct cowhand_limit *limits,
                       size_t count);

/**
 * Gets the limits in force as an object in JSON, names with values; those that are not set are left out. The caller
 * releases the text with cowhand_free.
 */
int cowhand_get_limits(struct cowhand_disk *disk,
                       char **json);

/**
 * Gets what has passed since the disk was opened, as an object in JSON: for "read", "write", "write-zeroes", "discard",
 * "flush" and "status" an object of "requests", "failed", "bytes", "total-ns" and "in-flight"; and "idle-ns", the time
 * since the last request ended, or null. The caller releases the text with cowhand_free.
 */
int cowhand_statistics(struct cowhand_disk *disk,
                       char **json);

/**
 * Gets the internal snapshots as a list in JSON, in the order in which they were taken: "id", "name", "date-sec" and
 * "date-nsec" (since 1970), "vm-clock-nsec", and "size" (bytes, or null in old images). The caller releases the text
 * with cowhand_free.
 */
int cowhand_snapshots(struct cowhand_disk *disk,
                      char **json);

/**
 * Takes an internal snapshot of the disk as it is, while it is in use. What completed before is in it. Durable when
 * the call returns.
 */
int cowhand_create_snapshot(struct cowhand_disk *disk,
                            const char *name);

/**
 * Goes back to the snapshot with this id, or else of this name, and to the size that the disk had. Everything written
 * since is lost; the snapshot stays. The guest must not use the disk meanwhile.
 */
int cowhand_apply_snapshot(struct cowhand_disk *disk,
                           const char *id_or_name);

/**
 * Deletes the snapshot with this id, or else of this name.
 */
int cowhand_delete_snapshot(struct cowhand_disk *disk, const char *id_or_name);

/**
 * Begins to copy what the images from top on hold into base, while the disk is in use; images are counted from the
 * disk's own, which is 0. base may be COWHAND_LOWEST. With a top of 0 the job becomes ready, and the disk switches to
 * the base when it is completed; otherwise it ends by itself. speed is in bytes a second, 0 is no limit. A disk has
 * one job at a time: -EBUSY.
 */
int cowhand_commit(struct cowhand_disk *disk,
                   uint32_t top,
                   uint32_t base,
                   uint64_t speed,
                   struct cowhand_job **job);

/**
 * Begins to copy what the backing files above base hold into the disk's own image, which then has base as its backing
 * file, or none with COWHAND_LOWEST. Ends by itself.
 */
int cowhand_stream(struct cowhand_disk *disk,
                   uint32_t base,
                   uint64_t speed,
                   struct cowhand_job **job);

/**
 * Begins to keep a copy of the disk in target, in step with what is written. target is a disk with properties that is
 * not connected, whose image exists and has the same size; it stays the caller's. The job becomes ready when the copy
 * has everything; completed, the disk switches to it; cancelled then, the copy is whole as of that moment.
 */
int cowhand_mirror(struct cowhand_disk *disk,
                   struct cowhand_disk *target,
                   uint32_t copied,
                   uint32_t flags,
                   uint64_t speed,
                   struct cowhand_job **job);

/**
 * Begins a copy of the disk as it is when this call returns, in target, which is as for cowhand_mirror: what is
 * overwritten meanwhile is copied first. Ends by itself.
 */
int cowhand_backup(struct cowhand_disk *disk,
                   struct cowhand_disk *target,
                   uint32_t copied,
                   uint32_t flags,
                   uint64_t speed,
                   struct cowhand_job **job);

/**
 * Gives how far a job is; of one that has ended, its end.
 */
int cowhand_job_get_info(struct cowhand_job *job, struct cowhand_job_info *info);

/**
 * Has a job rest after the steps that are under way.
 */
int cowhand_job_pause(struct cowhand_job *job);

/**
 * Has a job work again.
 */
int cowhand_job_resume(struct cowhand_job *job);

/**
 * Sets a job's limit in bytes a second; 0 is none.
 */
int cowhand_job_set_speed(struct cowhand_job *job, uint64_t speed);

/**
 * Has a job end. A mirror that is ready leaves a whole copy; otherwise what was copied is worth nothing, and the disk
 * has the images that it had. cowhand_job_wait returns when it has ended: 0 for such a mirror, -ECANCELED otherwise.
 */
int cowhand_job_cancel(struct cowhand_job *job);

/**
 * Has the disk switch to the copy, of a job that is ready. cowhand_job_wait returns when it has.
 */
int cowhand_job_complete(struct cowhand_job *job);

/**
 * Blocks until the copy is in step with the disk, of a mirror or of a commit from the disk's own image; of any other
 * job until its end.
 */
int cowhand_job_wait_ready(struct cowhand_job *job);

/**
 * Blocks until a job has ended and cleaned up; returns how it ended.
 */
int cowhand_job_wait(struct cowhand_job *job);

/**
 * Ends the handle of a job, which continues. *job becomes null. A job that is null already is no error.
 */
int cowhand_job_destroy(struct cowhand_job **job);

/**
 * Takes a checkpoint of the disk as it is, while it is in use: its image is sealed as layers/ID.qcow2 beside it, and
 * the disk continues in a new overlay at the path that it has. What completed before is in it. Durable when the call
 * returns. name may be null: then the checkpoint is called by its id, which *id is; id may be null, too. labels are
 * count texts KEY=VALUE. The caller releases *id with cowhand_free.
 */
int cowhand_checkpoint(struct cowhand_disk *disk,
                       const char *name,
                       const char *const *labels,
                       size_t count,
                       char **id);

/**
 * Gets all checkpoints of the disk and its forks as a list in JSON, the oldest first: "id", "name" (or null), "disk"
 * (the file name of the disk that it was taken of), "parent" (an id, or null), "date-sec" and "date-nsec" (since 1970),
 * "labels", "size" and "allocated" (bytes of the disk and of the file), "users" (file names of what is backed by it),
 * "deleted", and "changed" (why it cannot be used any more, or null). The caller releases the text with cowhand_free.
 */
int cowhand_checkpoints(struct cowhand_disk *disk,
                        char **json);

/**
 * Has the disk continue from a checkpoint, named by its name or its id: requests in flight finish on the old layer, later
 * ones find the new one. What the disk was stays as a checkpoint without a name, whose id is *left; left may be null. The
 * guest must not use the disk meanwhile. The caller releases *left with cowhand_free.
 */
int cowhand_rollback(struct cowhand_disk *disk,
                     const char *checkpoint,
                     char **left);

/**
 * Makes a new disk that begins as a checkpoint is, at path, where nothing is, in the directory of the disk. With a count
 * above 0 makes so many, with a number before the extension: vm-1.qcow2 and so on; all are whole before the first has its
 * name.
 */
int cowhand_fork(struct cowhand_disk *disk,
                 const char *checkpoint,
                 const char *path,
                 uint32_t count);

/**
 * Deletes a checkpoint. A layer that others need stays, without a name, until they are gone or cowhand_forget merges it.
 * flags: COWHAND_LIST_ONLY. Gets in JSON what goes: "layers" (ids), "bytes", and "needed", a list of "id" and "users" (file
 * names). json may be null. The caller releases the text with cowhand_free.
 */
int cowhand_delete_checkpoint(struct cowhand_disk *disk,
                              const char *checkpoint,
                              uint32_t flags,
                              char **json);

/**
 * Removes layers that nothing needs any more. flags: COWHAND_LIST_ONLY, COWHAND_COLLECT_UNNAMED. json is as for
 * cowhand_delete_checkpoint.
 */
int cowhand_collect_layers(struct cowhand_disk *disk,
                           uint32_t flags,
                           char **json);

/**
 * Forgets checkpoints of the disk without a name that a policy does not keep, and begins a job that merges layers that
 * nothing needs by themselves, while the disk is in use. keep is such as "hourly:24,daily:7", or null: all stay.
 * max_depth is the number of layers below the disk at most, 0 is no limit. Layers are merged where more than max_waste
 * percent of them is not needed, or COWHAND_ANY_WASTE. Null, 0 and COWHAND_ANY_WASTE together are the policy of the
 * lineage. flags: COWHAND_SAVE_POLICY makes these three its policy, which its servers follow after each checkpoint; empty
 * ones take it away. speed is in bytes a second, 0 is no limit. job may be null: then nothing changes, and what would is
 * listed. json is as for cowhand_delete_checkpoint, and has "forgotten" (ids), "merged" (a list of "into", "layers" and
 * "bytes") and "too-deep": the number of layers where it stays above max_depth, or null.
 */
int cowhand_forget(struct cowhand_disk *disk,
                   const char *keep,
                   uint32_t max_depth,
                   uint32_t max_waste,
                   uint32_t flags,
                   uint64_t speed,
                   struct cowhand_job **job,
                   char **json);

/**
 * Gets the ranges from offset on in which a checkpoint and another one may differ, or the disk as it is where other is
 * null, in order; returns their count. There are at most max, and at most 4096 a call: the next call begins where the last
 * range ends. 0 is the end. Compares maps, and reads no data.
 */
int cowhand_differences(struct cowhand_disk *disk,
                        const char *checkpoint,
                        const char *other,
                        uint64_t offset,
                        struct cowhand_difference *differences,
                        size_t max);

/**
 * Begins to upload a checkpoint to an object store, as a chunked image, while the disk is in use; only what the store
 * lacks is sent. target is s3://BUCKET/FOLDER/NAME: that name is the checkpoint when the job has ended, and the "image" of
 * *json, an object with "id" and "image", is it for ever. Where the store is, and the credentials, AWS's environment
 * variables and files say. parent is an image of the lineage in the same folder of which unchanged chunks are taken, "none",
 * or null: one is looked for. key_secret is the secret with the key of an encrypted image, or null. chunk_size is 0, or
 * 512 KiB to 4 MiB. speed is in bytes of the disk a second, 0 is no limit. Other jobs and checkpoints continue meanwhile. json
 * may be null; the caller releases *json with cowhand_free.
 */
int cowhand_publish(struct cowhand_disk *disk,
                    const char *checkpoint,
                    const char *target,
                    const char *parent,
                    const char *key_secret,
                    uint64_t chunk_size,
                    uint32_t flags,
                    uint64_t speed,
                    struct cowhand_job **job,
                    char **json);

/**
 * Begins to upload the disk as it is when this call returns, as a chunked image, while the disk is in use; it needs no
 * checkpoint. What is overwritten before it is read is read first, and kept in memory until it is sent, 32 MiB at most.
 * Beyond that writes wait for the store, for 20 s at most: then they are done, and the job fails. bitmap is null, or a
 * bitmap of the disk that has recorded all changes since the disk was pushed to target: only what it has as changed is
 * read, and the rest is taken from the image that is there. It is not cleared. Everything else is as for cowhand_publish,
 * flags too. The store is asked before the call returns. Ends by itself; a disk has one job at a time, but for those of
 * cowhand_publish: -EBUSY.
 */
int cowhand_push(struct cowhand_disk *disk,
                 const char *target,
                 const char *bitmap,
                 const char *key_secret,
                 uint64_t chunk_size,
                 uint32_t flags,
                 uint64_t speed,
                 struct cowhand_job **job);

/**
 * Makes a disk at path, where nothing is, that begins as a published checkpoint: a qcow2 overlay whose backing file is the
 * image in the store. It is ready at once, and what is read is fetched. source is s3://BUCKET/FOLDER/NAME, or a URL of a web
 * server; at is one of the checkpoints below it that were published to the name, by its name or id, or null; key_secret is
 * as for cowhand_publish. *json is an object with "image", "backing" and "size": the disk is opened with the property
 * "allow-name" set to "backing". cowhand_stream fetches the rest. json may be null; the caller releases *json with
 * cowhand_free.
 */
int cowhand_restore(const char *path,
                    const char *source,
                    const char *at,
                    const char *key_secret,
                    char **json);

/**
 * Adds a password or a key of len bytes, which properties call id ("encrypt.key-secret" of a qcow2 image, "key-secret" of
 * a LUKS file), for all disks of the process. The bytes are copied into locked memory that core dumps leave out. A disk
 * looks its secret up when it is connected. -EEXIST where there is one of that id.
 */
int cowhand_add_secret(const char *id,
                       const void *bytes,
                       size_t len);

/**
 * Removes the secret called id and overwrites it; disks that were connected with it stay open. -ENOENT where there is none.
 */
int cowhand_remove_secret(const char *id);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* COWHAND_H */
