package cowhand

/*
#include <cowhand.h>
*/
import "C"

import "runtime"

// Job is a job on a disk, which continues when this is dropped.
type Job struct{ handle *C.cowhand_job }

// JobInfo is how far a job is.
type JobInfo struct {
	// Status is in QEMU's words: "running", "ready", "concluded" and others.
	Status string
	// Done are bytes that are done; Total those that are to be done in all.
	Done, Total uint64
	// Speed is in bytes a second; 0 is no limit.
	Speed uint64
}

// Copied is what of a disk a job copies.
type Copied uint32

const (
	// Everything that the disk reads as.
	Everything Copied = C.COWHAND_COPY_EVERYTHING
	// Top is what the disk's own image holds, for a target over the same backing file.
	Top Copied = C.COWHAND_COPY_TOP
	// Nothing but what is written from now on.
	Nothing Copied = C.COWHAND_COPY_NOTHING
)

// Lowest stands for the lowest image of a chain (Commit), or for none (Stream).
const Lowest uint32 = C.COWHAND_LOWEST

func begin(work func(**C.cowhand_job) C.int) (*Job, error) {
	job := &Job{}
	if _, err := call(func() C.int { return work(&job.handle) }); err != nil {
		return nil, err
	}
	runtime.SetFinalizer(job, func(job *Job) {
		handle := job.handle
		C.cowhand_job_destroy(&handle)
	})
	return job, nil
}

// Commit begins to copy what the images from top on hold into base; images are counted from the disk's own, which is 0.
func (d *Disk) Commit(top, base uint32, speed uint64) (*Job, error) {
	return begin(func(job **C.cowhand_job) C.int {
		return C.cowhand_commit(d.handle, C.uint32_t(top), C.uint32_t(base), C.uint64_t(speed), job)
	})
}

// Stream begins to copy what the backing files above base hold into the disk's own image.
func (d *Disk) Stream(base uint32, speed uint64) (*Job, error) {
	return begin(func(job **C.cowhand_job) C.int {
		return C.cowhand_stream(d.handle, C.uint32_t(base), C.uint64_t(speed), job)
	})
}

// Mirror begins to keep a copy of the disk in the image at path, which has the same size. Path and options are as for
// Open.
func (d *Disk) Mirror(path string, options Options, copied Copied, synchronous bool, speed uint64) (*Job, error) {
	flags := C.uint32_t(0)
	if synchronous {
		flags = C.COWHAND_MIRROR_SYNCHRONOUS
	}
	target, err := prepare(path, options)
	if err != nil {
		return nil, err
	}
	defer target.Close()
	return begin(func(job **C.cowhand_job) C.int {
		return C.cowhand_mirror(d.handle, target.handle, C.uint32_t(copied), flags, C.uint64_t(speed), job)
	})
}

// Backup begins a copy of the disk as it is when the call returns, in the image at path, which is as for Mirror. With
// breakWrites a write whose old content cannot be copied fails, rather than the job.
func (d *Disk) Backup(path string, options Options, copied Copied, breakWrites bool, speed uint64) (*Job, error) {
	flags := C.uint32_t(0)
	if breakWrites {
		flags = C.COWHAND_BACKUP_BREAK_WRITES
	}
	target, err := prepare(path, options)
	if err != nil {
		return nil, err
	}
	defer target.Close()
	return begin(func(job **C.cowhand_job) C.int {
		return C.cowhand_backup(d.handle, target.handle, C.uint32_t(copied), flags, C.uint64_t(speed), job)
	})
}

// Info is how far the job is; of one that has ended, its end.
func (j *Job) Info() (JobInfo, error) {
	var info C.cowhand_job_info
	if _, err := call(func() C.int { return C.cowhand_job_get_info(j.handle, &info) }); err != nil {
		return JobInfo{}, err
	}
	return JobInfo{C.GoString(info.status), uint64(info.done), uint64(info.total), uint64(info.speed)}, nil
}

// WaitReady blocks until the copy is in step with the disk, or the job has ended.
func (j *Job) WaitReady() error {
	_, err := call(func() C.int { return C.cowhand_job_wait_ready(j.handle) })
	return err
}

// Wait blocks until the job has ended, and gives how: nil, why it failed, or ECANCELED.
func (j *Job) Wait() error {
	_, err := call(func() C.int { return C.cowhand_job_wait(j.handle) })
	return err
}

// Complete has the disk switch to the copy, of a job that is ready.
func (j *Job) Complete() error {
	_, err := call(func() C.int { return C.cowhand_job_complete(j.handle) })
	return err
}

// Cancel has the job end. A mirror that is ready leaves a whole copy.
func (j *Job) Cancel() error {
	_, err := call(func() C.int { return C.cowhand_job_cancel(j.handle) })
	return err
}

// Pause has the job rest.
func (j *Job) Pause() error {
	_, err := call(func() C.int { return C.cowhand_job_pause(j.handle) })
	return err
}

// Resume has the job work again.
func (j *Job) Resume() error {
	_, err := call(func() C.int { return C.cowhand_job_resume(j.handle) })
	return err
}

// SetSpeed sets the job's limit in bytes a second; 0 is none.
func (j *Job) SetSpeed(speed uint64) error {
	_, err := call(func() C.int { return C.cowhand_job_set_speed(j.handle, C.uint64_t(speed)) })
	return err
}
