package cowhand

/*
#include <cowhand.h>
#include <stdlib.h>
*/
import "C"

import (
	"syscall"
	"time"
	"unsafe"
)

// Buffer is memory outside of Go's heap, for requests that are in flight after the call that submits them.
type Buffer struct {
	start unsafe.Pointer
	bytes []byte
}

// NewBuffer gives length zero bytes, which Free releases.
func NewBuffer(length int) *Buffer {
	start := C.calloc(1, C.size_t(length)+1)
	return &Buffer{start, unsafe.Slice((*byte)(start), length)}
}

// Bytes are the buffer's. They belong to a request from its submission until its completion was taken.
func (b *Buffer) Bytes() []byte { return b.bytes }

// Free releases the buffer, which no request may have.
func (b *Buffer) Free() {
	C.free(b.start)
	b.start, b.bytes = nil, nil
}

// Queue has requests in flight. One goroutine at a time uses it.
type Queue struct {
	handle *C.cowhand_queue
	done   []C.cowhand_completion
}

// Completion is how a request ended.
type Completion struct {
	// UserData is the number that it was submitted with.
	UserData uint64
	// Err is nil, or an *Error.
	Err error
}

// Queue is the queue with this number, of a disk that OpenQueues has opened. It ends with the disk.
func (d *Disk) Queue(index uint32) (*Queue, error) {
	queue := &Queue{}
	_, err := call(func() C.int { return C.cowhand_get_queue(d.handle, C.uint32_t(index), &queue.handle) })
	if err != nil {
		return nil, err
	}
	return queue, nil
}

// Read submits a read of as many bytes as the buffer has.
func (q *Queue) Read(offset uint64, buffer *Buffer, userData uint64) error {
	_, err := call(func() C.int {
		length := C.size_t(len(buffer.bytes))
		return C.cowhand_read(q.handle, C.uint64_t(offset), buffer.start, length, C.uint64_t(userData), 0)
	})
	return err
}

// Write submits a write of the buffer; with fua it is durable when it completes.
func (q *Queue) Write(offset uint64, buffer *Buffer, userData uint64, fua bool) error {
	flags := C.uint32_t(0)
	if fua {
		flags = C.COWHAND_REQ_FUA
	}
	_, err := call(func() C.int {
		length := C.size_t(len(buffer.bytes))
		return C.cowhand_write(q.handle, C.uint64_t(offset), buffer.start, length, C.uint64_t(userData), flags)
	})
	return err
}

// Flush submits a flush.
func (q *Queue) Flush(userData uint64) error {
	_, err := call(func() C.int { return C.cowhand_flush(q.handle, C.uint64_t(userData), 0) })
	return err
}

// Discard submits a discard.
func (q *Queue) Discard(offset, length, userData uint64) error {
	_, err := call(func() C.int {
		return C.cowhand_discard(q.handle, C.uint64_t(offset), C.uint64_t(length), C.uint64_t(userData), 0)
	})
	return err
}

// WriteZeroes submits a request for zeroes.
func (q *Queue) WriteZeroes(offset, length, userData uint64, flags ZeroFlags) error {
	_, err := call(func() C.int {
		return C.cowhand_write_zeroes(q.handle, C.uint64_t(offset), C.uint64_t(length), C.uint64_t(userData),
			C.uint32_t(flags))
	})
	return err
}

// Completions takes at most max completions. It waits until there are min, or as many as are in flight if these are
// fewer, or until the timeout has passed; a negative one is none.
func (q *Queue) Completions(min, max int, timeout time.Duration) ([]Completion, error) {
	if len(q.done) < max {
		q.done = make([]C.cowhand_completion, max)
	}
	var list *C.cowhand_completion
	if max > 0 {
		list = &q.done[0]
	}
	count, err := call(func() C.int {
		return C.cowhand_do_io(q.handle, list, C.int(min), C.int(max), C.int64_t(timeout.Nanoseconds()))
	})
	if err != nil {
		return nil, err
	}
	completions := make([]Completion, count)
	for index, done := range q.done[:count] {
		completions[index].UserData = uint64(done.user_data)
		if done.ret < 0 {
			completions[index].Err = &Error{syscall.Errno(-done.ret), C.GoString(done.message)}
		}
	}
	return completions, nil
}

// CompletionFD is an eventfd that is readable exactly while there are completions to be taken. It belongs to the queue.
func (q *Queue) CompletionFD() (int, error) {
	return call(func() C.int { return C.cowhand_completion_fd(q.handle) })
}
