//! A file in use by QEMU is refused, and the reverse, with the holder's process id in the error.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use black_box::holder::{Mode, Program};
use black_box::peer::{qemu_img, qemu_io, qemu_io_ok};
use black_box::{Holder, Scratch, Server, cowhand};

const PROGRAMS: [Program; 3] = [Program::Io, Program::Nbd, Program::StorageDaemon];

fn image(scratch: &Scratch, name: &str) -> PathBuf {
    let path = scratch.file(name);
    qemu_img(["create", "-q", "-f", "qcow2"]).arg(&path).arg("8M").ok();
    path
}

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("scratch paths are text")
}

/// QEMU cannot open the image as `options` say.
fn qemu_refuses(options: &[&str], path: &std::path::Path, command: &str) {
    let outcome = qemu_io(options, text(path), &[command]).outcome();
    let said = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(said.contains("lock"), "QEMU should be locked out: {outcome}");
}

#[test]
fn an_image_that_qemu_writes_is_refused_with_the_writers_pid() {
    for program in PROGRAMS {
        let scratch = Scratch::new();
        let path = image(&scratch, "disk.qcow2");
        let holder = Holder::new(program, &path, Mode::Write);
        let pid = holder.pid().to_string();
        let refusals = [
            Server::refuses([text(&path)]),
            Server::refuses(["--read-only", text(&path)]),
            cowhand(["info", text(&path)]).fails(),
            cowhand(["map", text(&path)]).fails(),
            cowhand(["check", text(&path)]).fails(),
            cowhand(["check", "-r", "all", text(&path)]).fails(),
        ];
        for said in refusals {
            assert!(said.contains(&pid), "{program:?} is process {pid}: {said}");
        }
        cowhand(["info", "-U", text(&path)]).ok();
        drop(holder);
        Server::start([text(&path)]).stop();
    }
}

#[test]
fn an_image_that_qemu_reads_is_refused_for_writing_and_shared_for_reading() {
    for program in PROGRAMS {
        let scratch = Scratch::new();
        let path = image(&scratch, "disk.qcow2");
        let holder = Holder::new(program, &path, Mode::Read);
        let said = Server::refuses([text(&path)]);
        assert!(said.contains(&holder.pid().to_string()), "{program:?}: {said}");
        let server = Server::start(["--read-only", text(&path)]);
        cowhand(["info", text(&path)]).ok();
        server.stop();
    }
}

#[test]
fn qemu_is_kept_out_of_an_image_that_we_write() {
    let scratch = Scratch::new();
    let path = image(&scratch, "disk.qcow2");
    let server = Server::start([text(&path)]);
    qemu_refuses(&["-f", "qcow2"], &path, "write 0 64k");
    qemu_refuses(&["-f", "qcow2", "-r"], &path, "read 0 64k");
    let said = qemu_img(["info", text(&path)]).fails();
    assert!(said.contains("lock"), "{said}");
    qemu_img(["info", "-U", text(&path)]).ok();
    qemu_img(["check", "-r", "all", text(&path)]).fails();
    server.stop();
    qemu_io_ok(&["-f", "qcow2"], text(&path), &["write 0 64k"]);
}

#[test]
fn qemu_may_read_what_we_read_and_may_not_write_it() {
    let scratch = Scratch::new();
    let path = image(&scratch, "disk.qcow2");
    let server = Server::start(["--read-only", text(&path)]);
    qemu_io_ok(&["-f", "qcow2", "-r"], text(&path), &["read 0 64k"]);
    qemu_img(["info", text(&path)]).ok();
    qemu_refuses(&["-f", "qcow2"], &path, "write 0 64k");
    server.stop();
}

#[test]
fn a_backing_file_is_shared_between_overlays_and_written_by_nobody() {
    let scratch = Scratch::new();
    let base = image(&scratch, "base.qcow2");
    let overlays = ["a.qcow2", "b.qcow2"].map(|name| {
        let path = scratch.file(name);
        let create = ["create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", name];
        qemu_img(create).current_dir(scratch.path()).ok();
        path
    });
    let servers = overlays.each_ref().map(|path| Server::start([text(path)]));
    qemu_refuses(&["-f", "qcow2"], &base, "write 0 64k");
    qemu_io_ok(&["-f", "qcow2", "-r"], text(&base), &["read 0 64k"]);
    let said = Server::refuses([text(&base)]);
    let pids = servers.each_ref().map(|server| server.pid().to_string());
    assert!(pids.iter().any(|pid| said.contains(pid)), "{pids:?}: {said}");
    servers.into_iter().for_each(|server| drop(server.stop()));

    let holder = Holder::new(Program::Nbd, &base, Mode::Write);
    let said = Server::refuses([text(&overlays[0])]);
    assert!(said.contains(&holder.pid().to_string()), "{said}");
}

#[test]
fn two_of_us_keep_each_other_out() {
    let scratch = Scratch::new();
    let path = image(&scratch, "disk.qcow2");
    let server = Server::start([text(&path)]);
    for said in [
        Server::refuses([text(&path)]),
        Server::refuses(["--read-only", text(&path)]),
        Server::refuses(["--create", "1M", text(&path)]),
        cowhand(["create", "-f", "qcow2", text(&path), "1M"]).fails(),
        cowhand(["check", text(&path)]).fails(),
    ] {
        assert!(said.contains(&server.pid().to_string()), "{said}");
    }
    assert_eq!(server.client("").size(), 8 << 20, "it is untouched");
    server.stop();
    let readers = [(); 2].map(|()| Server::start(["--read-only", text(&path)]));
    readers.into_iter().for_each(|server| drop(server.stop()));
}

#[test]
fn the_same_image_twice_in_one_process_is_refused() {
    let scratch = Scratch::new();
    let path = image(&scratch, "disk.qcow2");
    let link = scratch.file("link.qcow2");
    std::fs::hard_link(&path, &link).expect("a link");
    let said = Server::refuses([text(&path), text(&link)]);
    assert!(said.contains("link.qcow2"), "{said}");
}

#[test]
fn locks_end_with_the_process_however_it_ends() {
    let scratch = Scratch::new();
    let path = image(&scratch, "disk.qcow2");
    let server = Server::start([text(&path)]);
    server.client("").write(0, &[1; 512]).expect("write");
    server.kill();
    qemu_io_ok(&["-f", "qcow2"], text(&path), &["write 64k 64k"]);
    let server = Server::start([text(&path)]);
    server.stop();
    qemu_io_ok(&["-f", "qcow2"], text(&path), &["write 64k 64k"]);
}

#[test]
fn creating_over_an_image_that_qemu_has_open_is_refused() {
    let scratch = Scratch::new();
    let path = image(&scratch, "disk.qcow2");
    let before = std::fs::read(&path).expect("an image");
    let holder = Holder::new(Program::Nbd, &path, Mode::Write);
    let said = cowhand(["create", "-f", "qcow2", text(&path), "1M"]).fails();
    assert!(said.contains(&holder.pid().to_string()), "{said}");
    assert!(std::fs::read(&path).expect("an image") == before, "it is changed");
}
