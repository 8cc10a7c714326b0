package cowhand

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const size = 64 << 20

func image(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.qcow2")
	must(t, Create(path, "qcow2", size))
	return path
}

func opened(t *testing.T, options Options) *Disk {
	t.Helper()
	disk, err := Open(image(t), options)
	must(t, err)
	t.Cleanup(func() { must(t, disk.Close()) })
	return disk
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, disk *Disk, offset int64, text string) {
	t.Helper()
	_, err := disk.WriteAt([]byte(text), offset)
	must(t, err)
}

func read(t *testing.T, disk *Disk, offset int64, length int) string {
	t.Helper()
	p := make([]byte, length)
	_, err := disk.ReadAt(p, offset)
	must(t, err)
	return string(p)
}

func fails(t *testing.T, err error, errno syscall.Errno, words string) {
	t.Helper()
	if !errors.Is(err, errno) || !strings.Contains(err.Error(), words) {
		t.Fatalf("%v; expected %v with %q", err, errno, words)
	}
}

func TestWhatIsWrittenIsReadBackByUsAndByQemu(t *testing.T) {
	path := image(t)
	disk, err := Open(path, Options{"cache": "writeback"})
	must(t, err)
	data := bytes.Repeat([]byte("0123456789abcdef"), 10000)
	_, err = disk.WriteAtDurable(data, 512)
	must(t, err)
	if read(t, disk, 512, len(data)) != string(data) {
		t.Fatal("other bytes came back")
	}
	must(t, disk.Flush())
	must(t, disk.Close())
	must(t, disk.Close())
	raw := path + ".raw"
	if output, err := exec.Command("qemu-img", "convert", "-O", "raw", path, raw).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	again, err := Open(raw, Options{"driver": "raw", "read-only": "on"})
	must(t, err)
	defer again.Close()
	if read(t, again, 512, len(data)) != string(data) {
		t.Fatal("QEMU has other bytes")
	}
}

func TestFailuresHaveNumberAndWords(t *testing.T) {
	path := image(t)
	fails(t, Create(path, "qcow2", size), syscall.EEXIST, "disk.qcow2")
	_, err := Open(path+".none", nil)
	fails(t, err, syscall.ENOENT, "none")
	_, err = Open(path, Options{"cahe": "none"})
	fails(t, err, syscall.EINVAL, "cahe")
	disk, err := Open(path, Options{"read-only": "on"})
	must(t, err)
	_, err = disk.WriteAt([]byte("x"), 0)
	fails(t, err, syscall.EROFS, "")
	_, err = disk.ReadAt(make([]byte, 2), size-1)
	fails(t, err, syscall.EINVAL, "past the end")
	if _, err = disk.ReadAt(make([]byte, 1), size); err != io.EOF {
		t.Fatal(err)
	}
	must(t, disk.Close())
	fails(t, disk.Flush(), syscall.EBADF, "")
}

// A description in JSON, as other programs have it, could not be opened.
func TestADriveIsOpenedWhereAPathIsNotEnough(t *testing.T) {
	path := image(t)
	drive := `json:{"driver": "qcow2", "file": {"driver": "file", "filename": "` + path + `"}}`
	disk, err := Open("", Options{"drive": drive})
	must(t, err)
	write(t, disk, 0, "drive")
	copied := path + ".copy"
	must(t, Create(copied, "qcow2", size))
	job, err := disk.Backup("", Options{"drive": "file=" + copied}, Everything, false, 0)
	must(t, err)
	must(t, job.Wait())
	must(t, disk.Close())
	disk, err = Open(copied, nil)
	must(t, err)
	defer disk.Close()
	if read(t, disk, 0, 5) != "drive" {
		t.Fatal("the drive was not copied")
	}
	_, err = Open("", nil)
	fails(t, err, syscall.EINVAL, "neither")
	_, err = Open(path, Options{"drive": drive})
	fails(t, err, syscall.EINVAL, "exclude")
}

func TestAnEncryptedImageOpensWithTheSecretOfTheProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "encrypted.qcow2")
	for {
		made := exec.Command("qemu-img", "create", "-q", "-f", "qcow2", "--object", "secret,id=s,data=hush", "-o",
			"encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10", path, "1M")
		output, err := made.CombinedOutput()
		if err == nil {
			break
		}
		// Now and then the kernel's count of CPU time went back, and it is to be tried again.
		if !strings.Contains(string(output), "Unable to get accurate CPU usage") {
			t.Fatalf("%v: %s", err, output)
		}
	}
	options := Options{"encrypt.key-secret": "key"}
	_, err := Open(path, options)
	fails(t, err, syscall.EINVAL, "key")
	must(t, AddSecret("key", []byte("hush")))
	fails(t, AddSecret("key", nil), syscall.EEXIST, "key")
	disk, err := Open(path, options)
	must(t, err)
	defer disk.Close()
	must(t, RemoveSecret("key"))
	fails(t, RemoveSecret("key"), syscall.ENOENT, "key")
	write(t, disk, 0, "seven")
	if read(t, disk, 0, 5) != "seven" {
		t.Fatal("not what was written")
	}
}

func TestTheMapCoversTheDisk(t *testing.T) {
	disk := opened(t, Options{"discard": "unmap"})
	for index := int64(0); index < 300; index++ {
		write(t, disk, index*131072, strings.Repeat("x", 65536))
	}
	must(t, disk.WriteZeroes(0, 65536, NoUnmap))
	must(t, disk.Discard(131072, 65536))
	var at, data uint64
	must(t, disk.Map(0, size, func(extent Extent) bool {
		if extent.Offset != at {
			t.Fatalf("an extent begins at %d, the one before it ended at %d", extent.Offset, at)
		}
		at += extent.Length
		if extent.Data {
			data += extent.Length
			if extent.FileOffset == nil {
				t.Fatal("data without a place")
			}
		}
		return true
	}))
	if at != size || data != 298*65536 {
		t.Fatal(at, data)
	}
	count := 0
	must(t, disk.Map(0, size, func(Extent) bool { count++; return count < 3 }))
	if count != 3 {
		t.Fatal(count)
	}
}

func TestSnapshots(t *testing.T) {
	disk := opened(t, nil)
	write(t, disk, 0, "one")
	must(t, disk.CreateSnapshot("first"))
	write(t, disk, 0, "two")
	list, err := disk.Snapshots()
	must(t, err)
	if len(list) != 1 || list[0].Name != "first" || *list[0].Size != size || time.Since(list[0].Taken) > time.Hour {
		t.Fatal(list)
	}
	must(t, disk.ApplySnapshot("first"))
	if read(t, disk, 0, 3) != "one" {
		t.Fatal("not what the snapshot has")
	}
	must(t, disk.DeleteSnapshot(list[0].ID))
	fails(t, disk.DeleteSnapshot("first"), syscall.EINVAL, "first")
}

func TestLimitsFiguresAndSize(t *testing.T) {
	disk := opened(t, Options{"throttling.iops-total": "5000"})
	limits, err := disk.Limits()
	must(t, err)
	if !reflect.DeepEqual(limits, map[string]uint64{"iops-total": 5000}) {
		t.Fatal(limits)
	}
	must(t, disk.SetLimits(map[string]uint64{"bps-read": 1 << 30, "bps-write": 1 << 30}))
	fails(t, disk.SetLimits(map[string]uint64{"iops-totl": 5}), syscall.EINVAL, "iops-total")
	must(t, disk.SetLimits(nil))
	write(t, disk, 0, "12345")
	statistics, err := disk.Statistics()
	must(t, err)
	if statistics.Write.Requests != 1 || statistics.Write.Bytes != 5 || statistics.IdleNS == nil {
		t.Fatal(statistics)
	}
	must(t, disk.Resize(2*size, false))
	fails(t, disk.Resize(size, false), syscall.EINVAL, "")
	must(t, disk.Resize(size, true))
}

func TestGoroutinesUseOneDiskAtOnce(t *testing.T) {
	disk := opened(t, nil)
	var group sync.WaitGroup
	for number := 0; number < 8; number++ {
		group.Add(1)
		go func(number int) {
			defer group.Done()
			part := bytes.Repeat([]byte{byte(number + 1)}, 4096)
			for block := 0; block < 32; block++ {
				if _, err := disk.WriteAt(part, int64(number*32+block)*4096); err != nil {
					t.Error(err)
				}
				// The words are of this failure, whichever thread runs the goroutine.
				_, err := disk.number(strings.Repeat("x", number+1))
				if !strings.Contains(err.Error(), `"`+strings.Repeat("x", number+1)+`"`) {
					t.Error(err)
				}
			}
		}(number)
	}
	group.Wait()
	for number := 0; number < 8; number++ {
		if read(t, disk, int64(number)*32*4096, 32*4096) != strings.Repeat(string(rune(number+1)), 32*4096) {
			t.Fatal(number)
		}
	}
}

func TestAQueueHasRequestsInFlight(t *testing.T) {
	disk, err := OpenQueues(image(t), nil, 2, 8)
	must(t, err)
	defer disk.Close()
	queue, err := disk.Queue(1)
	must(t, err)
	_, err = disk.Queue(2)
	fails(t, err, syscall.ENOENT, "allowed")
	buffers := make([]*Buffer, 8)
	for index := range buffers {
		buffers[index] = NewBuffer(4096)
		defer buffers[index].Free()
		buffers[index].Bytes()[0] = byte(index + 1)
		must(t, queue.Write(uint64(index)*4096, buffers[index], uint64(index), index == 0))
	}
	fails(t, queue.Flush(8), syscall.EAGAIN, "")
	done, err := queue.Completions(8, 16, -1)
	must(t, err)
	if len(done) != 8 {
		t.Fatal(done)
	}
	must(t, queue.WriteZeroes(0, 4096, 1, 0))
	must(t, queue.Discard(4096, 4096, 2))
	must(t, queue.Flush(3))
	must(t, queue.Read(size, buffers[0], 4))
	for count := 0; count < 4; {
		done, err := queue.Completions(1, 16, -1)
		must(t, err)
		for _, completion := range done {
			if completion.UserData == 4 {
				fails(t, completion.Err, syscall.EINVAL, "past the end")
			} else {
				must(t, completion.Err)
			}
		}
		count += len(done)
	}
	must(t, queue.Read(2*4096, buffers[0], 5))
	_, err = queue.Completions(1, 1, -1)
	must(t, err)
	if buffers[0].Bytes()[0] != 3 {
		t.Fatal("not what was written")
	}
	fd, err := queue.CompletionFD()
	if err != nil || fd < 0 {
		t.Fatal(fd, err)
	}
	none, err := queue.Completions(0, 0, 0)
	if len(none) != 0 || err != nil {
		t.Fatal(none, err)
	}
}

func TestAnOverlayKnowsWhatIsItsOwn(t *testing.T) {
	base := image(t)
	overlay := filepath.Join(filepath.Dir(base), "overlay.qcow2")
	must(t, CreateOverlay(overlay, size, "disk.qcow2", "qcow2"))
	disk, err := Open(overlay, nil)
	must(t, err)
	defer disk.Close()
	write(t, disk, 1<<20, strings.Repeat("y", 65536))
	var own []uint64
	must(t, disk.Map(0, size, func(extent Extent) bool {
		if extent.Present && extent.Depth == 0 {
			own = append(own, extent.Offset, extent.Length)
		}
		return true
	}))
	if !reflect.DeepEqual(own, []uint64{1 << 20, 65536}) {
		t.Fatal(own)
	}
	info, err := disk.Info()
	must(t, err)
	if info.Driver != "qcow2" || !reflect.DeepEqual(info.Chain, []string{overlay, base}) || info.Size != size {
		t.Fatal(info)
	}
	if info.ReadOnly || info.Discards || info.RequestAlignment == 0 || info.DiscardAlignment != 65536 {
		t.Fatal(info)
	}
	if Version() != "0.1.0" {
		t.Fatal(Version())
	}
}

func TestCheckpoints(t *testing.T) {
	path := image(t)
	disk, err := Open(path, nil)
	must(t, err)
	defer disk.Close()
	write(t, disk, 0, "first")
	one, err := disk.Checkpoint("one", map[string]string{"os": "debian"})
	must(t, err)
	write(t, disk, 0, "later")
	_, err = disk.Checkpoint("one", nil)
	fails(t, err, syscall.EEXIST, "one already")
	var ranges []Difference
	must(t, disk.Differences("one", "", func(found Difference) bool {
		ranges = append(ranges, found)
		return true
	}))
	if len(ranges) != 1 || ranges[0] != (Difference{0, 65536, Shared, Data}) {
		t.Fatal(ranges)
	}
	must(t, disk.Fork("one", filepath.Join(filepath.Dir(path), "fork.qcow2"), 2))
	fork, err := Open(filepath.Join(filepath.Dir(path), "fork-2.qcow2"), nil)
	must(t, err)
	if read(t, fork, 0, 5) != "first" {
		t.Fatal("the fork is not as the checkpoint")
	}
	must(t, fork.Close())
	left, err := disk.Rollback("one")
	must(t, err)
	if read(t, disk, 0, 5) != "first" {
		t.Fatal("the disk is not as the checkpoint")
	}
	listed, err := disk.Checkpoints()
	must(t, err)
	if len(listed) != 2 || listed[0].ID != one || listed[0].Labels["os"] != "debian" || listed[1].ID != left {
		t.Fatal(listed)
	}
	if len(listed[0].Users) != 4 || time.Since(listed[0].Taken) > time.Hour {
		t.Fatal(listed[0])
	}
	removed, err := disk.CollectLayers(true, false)
	must(t, err)
	if len(removed.Layers) != 1 || removed.Layers[0] != left {
		t.Fatal(removed)
	}
	for _, text := range []string{"two..", "three"} {
		write(t, disk, 0, text)
		_, err = disk.Checkpoint("", nil)
		must(t, err)
	}
	would, err := disk.Forget(Forget{Keep: "last:1", ListOnly: true})
	must(t, err)
	forgotten, err := disk.Forget(Forget{Keep: "last:1", Save: true})
	must(t, err)
	if would.Job != nil || len(would.Merged) != 1 || len(forgotten.Checkpoints) != 1 {
		t.Fatal(would, forgotten)
	}
	must(t, forgotten.Job.Wait())
	_, err = disk.Checkpoint("", nil)
	must(t, err)
	would, err = disk.Forget(Forget{ListOnly: true})
	must(t, err)
	if len(would.Checkpoints) != 1 {
		t.Fatal("the policy is not the lineage's", would)
	}
	if read(t, disk, 0, 5) != "three" {
		t.Fatal("the disk reads otherwise after a merge")
	}
	removed, err = disk.DeleteCheckpoint("one", false)
	must(t, err)
	if len(removed.Needed) != 1 || removed.Needed[0].ID != one {
		t.Fatal(removed)
	}
}

func TestACheckpointIsPublishedAndADiskBeginsAsIt(t *testing.T) {
	if os.Getenv("AWS_ENDPOINT_URL") == "" {
		t.Skip("there is no store")
	}
	const name = "s3://images/vms/go"
	path := image(t)
	disk, err := Open(path, nil)
	must(t, err)
	defer disk.Close()
	write(t, disk, 0, "first")
	one, err := disk.Checkpoint("one", nil)
	must(t, err)
	write(t, disk, 0, "later")
	published, err := disk.Publish("one", Publish{Target: name, Uncompressed: true})
	must(t, err)
	if published.ID != one || published.Image != name+"@"+one {
		t.Fatal(published)
	}
	must(t, published.Job.Wait())
	_, err = disk.Publish("none", Publish{Target: name})
	fails(t, err, syscall.ENOENT, "none")
	restored, err := Restore(path+".new", name, "one", "")
	must(t, err)
	if restored.Image != published.Image || restored.Size != size {
		t.Fatal(restored)
	}
	begun, err := Open(path+".new", Options{"allow-name": restored.Backing})
	must(t, err)
	defer begun.Close()
	if read(t, begun, 0, 5) != "first" {
		t.Fatal("the disk is not as the checkpoint")
	}
	job, err := begun.Stream(Lowest, 0)
	must(t, err)
	must(t, job.Wait())
}

func TestADiskInUseIsPushedAsItIs(t *testing.T) {
	if os.Getenv("AWS_ENDPOINT_URL") == "" {
		t.Skip("there is no store")
	}
	const name = "s3://images/vms/go-pushed"
	disk := opened(t, nil)
	for chunk := int64(0); chunk < 4; chunk++ {
		write(t, disk, chunk<<20, "first")
	}
	job, err := disk.Push(Push{Target: name, ChunkSize: 1 << 20, Uncompressed: true, Speed: 1})
	must(t, err)
	write(t, disk, 0, "later")
	_, err = disk.Push(Push{Target: name})
	fails(t, err, syscall.EBUSY, "")
	must(t, job.SetSpeed(0))
	must(t, job.Wait())
	_, err = disk.Push(Push{Target: name, Bitmap: "none"})
	fails(t, err, syscall.ENOENT, "none")
	pushed, err := Open("chunked:"+name, Options{"driver": "raw", "read-only": "on"})
	must(t, err)
	defer pushed.Close()
	if read(t, pushed, 0, 5) != "first" || read(t, disk, 0, 5) != "later" {
		t.Fatal("the image is not the disk of that moment")
	}
}

func TestJobsCopyADiskInUse(t *testing.T) {
	path := image(t)
	backup, mirror := path+".backup", path+".mirror"
	must(t, Create(backup, "qcow2", size))
	must(t, Create(mirror, "qcow2", size))
	disk, err := Open(path, nil)
	must(t, err)
	defer disk.Close()
	write(t, disk, 0, "before")
	job, err := disk.Backup(backup, nil, Everything, true, 0)
	must(t, err)
	write(t, disk, 0, "after!")
	must(t, job.Wait())
	info, err := job.Info()
	must(t, err)
	if info.Status != "concluded" || info.Done != info.Total {
		t.Fatal(info)
	}
	job, err = disk.Mirror(mirror, nil, Everything, true, 1)
	must(t, err)
	_, err = disk.Stream(Lowest, 0)
	fails(t, err, syscall.EBUSY, "")
	must(t, job.Pause())
	must(t, job.Resume())
	must(t, job.SetSpeed(0))
	must(t, job.WaitReady())
	must(t, job.Complete())
	must(t, job.Wait())
	job, err = disk.Mirror(path, nil, Everything, false, 1)
	must(t, err)
	must(t, job.Cancel())
	fails(t, job.Wait(), syscall.ECANCELED, "")
	must(t, disk.Close())
	for path, text := range map[string]string{backup: "before", mirror: "after!"} {
		copied, err := Open(path, nil)
		must(t, err)
		if read(t, copied, 0, 6) != text {
			t.Fatal(path)
		}
		must(t, copied.Close())
	}
	overlay := path + ".overlay"
	must(t, CreateOverlay(overlay, size, filepath.Base(mirror), "qcow2"))
	disk, err = Open(overlay, nil)
	must(t, err)
	write(t, disk, 0, "merged")
	job, err = disk.Commit(0, Lowest, 0)
	must(t, err)
	must(t, job.WaitReady())
	must(t, job.Complete())
	must(t, job.Wait())
	if read(t, disk, 0, 6) != "merged" {
		t.Fatal("not what was written")
	}
	must(t, disk.Close())
}
