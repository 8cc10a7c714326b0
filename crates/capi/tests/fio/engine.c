/*
 * An engine for fio over libcowhand: --ioengine=external:.../engine.so --filename=IMAGE. It is compiled against fio's
 * sources, which have the structures of the fio that loads it. Each job opens the image by itself.
 */
#include "config-host.h"

#include "fio.h"
#include "optgroup.h"

#include <cowhand.h>

struct engine_data {
    cowhand_disk *disk;
    cowhand_queue *queue;
    cowhand_completion *done;
};

static int failed(int ret, const char *what) {
    log_err("cowhand: %s: %s\n", what, cowhand_error_message());
    return ret;
}

static cowhand_disk *open_disk(struct thread_data *td) {
    cowhand_disk *disk = NULL;
    int ret = cowhand_create("auto", &disk);
    if (ret == 0)
        ret = cowhand_set_str(disk, "path", td->o.filename);
    if (ret == 0)
        ret = cowhand_set_bool(disk, "discard", true);
    if (ret == 0)
        ret = cowhand_set_str(disk, "cache", td->o.odirect ? "none" : "writeback");
    if (ret == 0)
        ret = cowhand_set_u64(disk, "queue-size", td->o.iodepth);
    if (ret == 0)
        ret = cowhand_connect(disk);
    if (ret < 0) {
        failed(ret, "open");
        cowhand_destroy(&disk);
    }
    return disk;
}

/* Called once before the jobs are forked: only the size is found out. */
static int engine_setup(struct thread_data *td) {
    uint64_t size = 0;
    cowhand_disk *disk = open_disk(td);
    if (!disk)
        return 1;
    int ret = cowhand_get_u64(disk, "capacity", &size);
    if (ret < 0)
        failed(ret, "capacity");
    cowhand_destroy(&disk);
    if (!td->files_index) {
        add_file(td, td->o.filename, 0, 0);
        td->o.nr_files = td->o.nr_files ? td->o.nr_files : 1;
        td->o.open_files++;
    }
    td->files[0]->real_file_size = size;
    fio_file_set_size_known(td->files[0]);
    return ret < 0;
}

static int engine_init(struct thread_data *td) {
    struct engine_data *data = calloc(1, sizeof(*data));
    data->done = calloc(td->o.iodepth, sizeof(*data->done));
    td->io_ops_data = data;
    data->disk = open_disk(td);
    if (!data->disk)
        return 1;
    int ret = cowhand_start(data->disk);
    if (ret == 0)
        ret = cowhand_get_queue(data->disk, 0, &data->queue);
    return ret < 0 ? failed(1, "start") : 0;
}

static void engine_cleanup(struct thread_data *td) {
    struct engine_data *data = td->io_ops_data;
    if (!data)
        return;
    int ret = cowhand_destroy(&data->disk);
    if (ret < 0)
        failed(ret, "close");
    free(data->done);
    free(data);
    td->io_ops_data = NULL;
}

static enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u) {
    struct engine_data *data = td->io_ops_data;
    uint64_t number = (uintptr_t)io_u;
    int ret;
    fio_ro_check(td, io_u);
    switch (io_u->ddir) {
    case DDIR_READ:
        ret = cowhand_read(data->queue, io_u->offset, io_u->xfer_buf, io_u->xfer_buflen, number, 0);
        break;
    case DDIR_WRITE:
        ret = cowhand_write(data->queue, io_u->offset, io_u->xfer_buf, io_u->xfer_buflen, number, 0);
        break;
    case DDIR_TRIM:
        ret = cowhand_discard(data->queue, io_u->offset, io_u->xfer_buflen, number, 0);
        break;
    case DDIR_SYNC:
    case DDIR_DATASYNC:
        ret = cowhand_flush(data->queue, number, 0);
        break;
    default:
        ret = -ENOTSUP;
    }
    if (ret == -EAGAIN)
        return FIO_Q_BUSY;
    if (ret < 0) {
        io_u->error = -ret;
        return FIO_Q_COMPLETED;
    }
    return FIO_Q_QUEUED;
}

static int engine_getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *t) {
    struct engine_data *data = td->io_ops_data;
    int64_t timeout = t ? t->tv_sec * 1000000000LL + t->tv_nsec : -1;
    int count = cowhand_do_io(data->queue, data->done, (int)min, (int)max, timeout);
    if (count < 0)
        failed(count, "completions");
    return count;
}

static struct io_u *engine_event(struct thread_data *td, int event) {
    struct engine_data *data = td->io_ops_data;
    cowhand_completion *done = &data->done[event];
    struct io_u *io_u = (struct io_u *)(uintptr_t)done->user_data;
    io_u->error = -done->ret;
    io_u->resid = done->ret < 0 ? io_u->xfer_buflen : 0;
    return io_u;
}

static int engine_open_file(struct thread_data *td, struct fio_file *f) {
    return 0;
}

static int engine_close_file(struct thread_data *td, struct fio_file *f) {
    return 0;
}

struct ioengine_ops ioengine = {
    .name = "cowhand",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_DISKLESSIO | FIO_NOEXTEND,
    .setup = engine_setup,
    .init = engine_init,
    .cleanup = engine_cleanup,
    .queue = engine_queue,
    .getevents = engine_getevents,
    .event = engine_event,
    .open_file = engine_open_file,
    .close_file = engine_close_file,
};
