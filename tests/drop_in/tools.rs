//! Command lines of real callers, under QEMU's names and with QEMU's programs: exit codes and results are the same.
//!
//! Each of these lines stopped a platform, or made an image that differs: a default that stands before what was meant, a driver of a file
//! as the format of a backing file, the name of a data file that is to be removed.

use std::process::Command;

use black_box::{Run, Scratch};

use super::ours;

/// Lines of a shell, which end with what is compared.
const SCRIPTS: [&str; 49] = [
    "qemu-img create -f foo -f qcow2 a 1M; echo $?; qemu-img info -f foo a 2>&1 | wc -w | test $(cat) -gt 0; echo $?",
    "qemu-img create -q -f qcow2 a 1M; qemu-img convert -O foo -O raw -qffoo -fqcow2 a b; echo $?; cmp b b; stat -c %s b",
    "qemu-img create -q -f qcow2 a 1M; qemu-img rebase -u -b b -F host_device a; echo $?; qemu-img info -U a | grep backing",
    "truncate -s 1M b; qemu-img create -f qcow2 -b b -F file a; echo $?; qemu-io -c 'read -P 0 0 1M' a | head -1",
    "truncate -s 192k r; qemu-img convert -c -S 0 -f raw -O qcow2 r b; echo $?; qemu-img map --output=json b | sed 's/, .compressed.: [a-z]*//'",
    "truncate -s 192k r; printf x | dd of=r conv=notrunc status=none; qemu-img convert -c -S 8k -f raw -O qcow2 -o cluster_size=1k r b; qemu-img map --output=json b | sed 's/, .compressed.: [a-z]*//'",
    "qemu-img create -q -f raw b 1M; mkdir d; for n in file:b file:$PWD/b; do qemu-img create -q -f qcow2 -b $n -F raw a; qemu-img rebase -b $n -F raw a; echo $?; \
     qemu-img info --backing-chain a | grep -e image: -e backing; qemu-img commit a; done; qemu-img create -q -f qcow2 -b file:$PWD/b -F raw d/a; qemu-img info d/a | grep backing",
    "truncate -s 1M r; qemu-nbd -f raw -r -k $PWD/s -x e --fork r; qemu-img info -f raw --output=json \"nbd+unix:///e?socket=$PWD/s\" | grep -c -e dirty-flag -e specific",
    "qemu-img create -q -f qcow2 -o data_file=d a 1M; qemu-img amend -o data_file= a; echo $?; qemu-img info a | grep -c 'data file: d'",
    "qemu-img create -q -f qcow2 a 2M; qemu-img amend -o size=1M a; echo $?; qemu-img info a | grep virtual",
    "qemu-img create -f qcow2 -o size=1M a 2M 2>/dev/null; echo $?",
    "qemu-img create -f qcow2 file:a:b 1M; qemu-img create -f qcow2 -o compat=0.42 c 1M 2>/dev/null; echo $?; qemu-img create -f qcow2 -o , c 1M 2>/dev/null; echo $?",
    "mkdir d; cd d; qemu-img create -q -f qcow2 base 1M; qemu-img create -q -f qcow2 -b base -F qcow2 top; cd ..; \
     for base in d/base base $PWD/d/base; do qemu-img commit -b $base d/top 2>/dev/null; echo $?; done",
    "qemu-img create -q -f qcow2 a 4M; qemu-io -c 'write 0 64k' a >/dev/null; qemu-img snapshot -c s a; qemu-io -c 'write 1M 1M' a >/dev/null; \
     qemu-img measure -l s -O qcow2 a; qemu-img measure -l snapshot.name=s -O raw a; qemu-img measure -l none -O qcow2 a 2>/dev/null; echo $?",
    "qemu-img create -q -f qcow2 a 1M; qemu-io -c 'write 0 64k' a >/dev/null; mkdir d; qemu-img create -q -f qcow2 -b $PWD/a -F qcow2 b; \
     qemu-img create -q -f qcow2 -b ../a -F qcow2 d/c; qemu-img create -q -f qcow2 -b c -F qcow2 d/e; \
     for i in b $PWD/b d/c d/e $PWD/d/e; do qemu-img map $i; done | sed \"s,$PWD,here,\"; cd d; qemu-img map e",
    "qemu-img create -q -f qcow2 a 0; stat -c %s a; qemu-img resize a 1M; qemu-io -c 'write 0 1M' a | head -1; qemu-img check a",
    "qemu-img create -q -f qcow2 a 1M; qemu-io -c 'write -b 1000k 8k' -c 'write -P 3 0 64k' a | grep wrote; qemu-img snapshot -c s a; \
     qemu-io -c 'write -b -P 4 1000k 512' a | grep wrote; qemu-img snapshot -a s a; qemu-img check a | head -2; \
     qemu-io -c 'read -b -P 0xcd 1000k 8k' -c 'read -b -P 0 0 64k' -c 'read -P 3 0 64k' a | grep -v ops",
    "qemu-img create -q -f qcow2 a 1M; qemu-io -c 'reopen -o cache-size=1M' -c 'reopen -o l2-cache-size=512k' -c 'reopen -o refcount-cache-size=128k' a; \
     echo $?; qemu-io -c 'reopen -r -o read-only=on' a 2>/dev/null; echo $?; qemu-io -c 'reopen -c none -o cache.direct=on' a 2>/dev/null; echo $?",
    "qemu-img create -q -f qcow2 a 1M; qemu-img bitmap --add a b; qemu-io -c 'write 128k 64k' -c 'write -z 256k 64k' a >/dev/null; \
     qemu-nbd -r -f qcow2 -B b -k $PWD/s -x '' --fork a; qemu-img map --output=json --image-opts \
     driver=nbd,server.type=unix,server.path=s,x-dirty-bitmap=qemu:dirty-bitmap:b | sed 's/, .compressed.: [a-z]*//'; echo $?",
    "qemu-img create -q -f qcow2 a 1M; qemu-img create -q -f qcow2 below 1M; for o in compat=1.1 compat=0.10 backing_file=below,backing_fmt=qcow2; do \
     qemu-img create -q -f qcow2 -o $o b 1M; qemu-img convert -n -O qcow2 a b; qemu-img map --output=json b | sed 's/, .compressed.: [a-z]*//'; done",
    "for i in old new over; do qemu-img create -q -f qcow2 $i 1M; done; qemu-io -c 'write -P 1 0 128k' -c 'write -P 1 192k 64k' old >/dev/null; \
     qemu-io -c 'write -P 2 64k 128k' -c 'write -P 1 192k 64k' -c 'write -P 2 900k 8k' new >/dev/null; qemu-img create -q -f qcow2 -b old -F qcow2 over 2M; \
     qemu-img rebase -b new -F qcow2 over; qemu-img map over | { t=0; while read at len rest; do [ $at = Offset ] || t=$((t + len)); done; echo $t; }; \
     qemu-io -r -c 'read -P 1 0 128k' -c 'read -P 0 128k 64k' -c 'read -P 0 896k 64k' over | grep -v ops; qemu-img check over | head -1",
    "qemu-img create -q -f qcow2 b 4G; qemu-img create -q -f qcow2 -b b -F qcow2 a 4G; qemu-io -c 'write -z 0 64k' -c 'write -z 1G 64k' a >/dev/null; \
     qemu-img snapshot -c s a; qemu-img amend -p -o compat=0.10 a | tr '\\r' '\\n'",
    "qemu-img create -q -f qcow2 -o cluster_size=512 b 1M; qemu-img create -q -f qcow2 -o cluster_size=4k -b b -F qcow2 a; \
     qemu-io -c 'write -P 1 5k 1k' -c 'write -P 1 13k 1k' b >/dev/null; qemu-io -c 'write -z 5k 2k' -c 'write -z 14k 1k' -c 'read -P 0 4k 4k' a | grep -v ops; \
     qemu-img map --output=json a | sed 's/, .compressed.: [a-z]*//; s/, .offset.: [0-9]*//'",
    "qemu-img create -q -f qcow2 b 1M; qemu-img create -q -f qcow2 -b b -F qcow2 a; f='{\"driver\":\"file\",\"filename\":\"a\"}'; \
     for d in \"$f\" \"{'driver':'blkdebug','image':$f}\" \"{'driver':'blkdebug','image':$f,'set-state':[{'event':'read_aio','new_state':2}]}\" \
     \"{'driver':'quorum','vote-threshold':1,'children':[$f]}\"; do \
     qemu-img info \"json:{'driver':'qcow2','file':$d}\" | grep -e ^image -e '^backing file:' | sed 's/json:{.*/options/'; done",
    "qemu-img measure -l snapshot.foo=bar; echo $?; qemu-img measure -l snapshot.foo=bar 2>&1 | grep -c qemu-img:",
    "qemu-img create -q -f qcow2 a 1M; o='open -o driver=blkdebug,image.driver=qcow2'; qemu-io -c \"$o a\" -c 'write -P 5 0 64k' -c 'read -P 5 0 64k' | grep -v ops; \
     qemu-io -c 'read -P 5 0 64k' a | head -1; qemu-io -c \"$o blkdebug::a\" -c 'read -P 5 0 64k' | head -1",
    "qemu-img create -q -f qcow2 b 1M; qemu-img create -q -f qcow2 -b b -F qcow2 a; for o in node-name=n file.node-name=n backing.node-name=n \
     driver=raw file.driver=qcow2 backing.driver=file driver=qcow2 file.driver=file backing.driver=qcow2; do qemu-io -c \"reopen -o $o\" a 2>/dev/null; echo $?; done; \
     for n in '' file. backing.; do qemu-io -c \"open -o ${n}node-name=n a\" -c \"reopen -o ${n}node-name=n\" -c reopen; echo $?; done; \
     qemu-io -f null-co -c reopen -c info null-co://; echo $?",
    "qemu-img create -q -f qcow2 b 1M; qemu-img create -q -f qcow2 -b b -F qcow2 a; qemu-io -c 'open -r -o driver=copy-on-read,file.driver=qcow2 a' 2>/dev/null; echo $?",
    "s=secret,id=s,data=x; qemu-img create -q -f qcow2 a 1M; qemu-io --object $s --image-opts driver=qcow2,encrypt.key-secret=s,file.filename=a -c 'read 0 64k' | head -1; \
     qemu-io --image-opts driver=qcow2,encrypt.key-secret=s,file.filename=a -c 'read 0 64k' 2>/dev/null | head -1",
    "o='--object secret,id=s,data=x --object secret,id=t,data=y'; e=encrypt; qemu-img create -q $o -f qcow2 -o $e.format=luks,$e.key-secret=s,$e.iter-time=10 a 1M; \
     i=driver=qcow2,file.filename=a,$e.key-secret=; for f in '' --force; do qemu-img amend $f $o --image-opts ${i}s \
     -o $e.state=active,$e.new-secret=t,$e.keyslot=0,$e.iter-time=10 2>/dev/null; echo $?; done; for s in s t; do qemu-io $o --image-opts $i$s -c 'read 0 64k' 2>/dev/null | head -1; done; \
     for k in 5 0; do qemu-img amend --force $o --image-opts ${i}t -o $e.state=inactive,$e.keyslot=$k; echo $?; done; qemu-io $o --image-opts ${i}t -c 'read 0 64k' 2>/dev/null; echo $?",
    "qemu-img create -q -f qcow2 a 1040k; qemu-img resize -q --preallocation=falloc a +16k; qemu-io -c 'write 0 1040k' a >/dev/null; a=$(stat -c %b a); \
     qemu-io -c 'write 1040k 16k' a >/dev/null; test $(stat -c %b a) = $a; echo $?; qemu-img check a | head -1",
    "truncate -s 1M r; truncate -s 512k s; printf '[inject-error]\\nevent = \"read_aio\"\\n' > c; qemu-img create -q -f qcow2 a 1M; qemu-io -c 'write 600k 64k' a >/dev/null; \
     qemu-img compare blkdebug:c:a s 2>/dev/null; echo $?",
    "qemu-io -f null-co -c 'read 0 512' null-co:// | head -1; truncate -s 1M r; qemu-img convert -C --salvage -O qcow2 r a 2>/dev/null; echo $?",
    // A header that is written anew names features again when the image is closed.
    "qemu-img create -q -f qcow2 b 1M; qemu-img create -q -f qcow2 -b b -F qcow2 a; for c in 'rebase -u -b c -F qcow2 a' 'create -q -f qcow2 c 1M' \
     'bitmap --add a x' 'amend -o lazy_refcounts=on a'; do qemu-img $c; head -c 1k a | grep -ac 'lazy refcounts'; done; qemu-img info a | grep -e '^backing file:' -e lazy",
    // Data and zeroes that have their places in a row are one write.
    "qemu-img create -q -f qcow2 a 192k; qemu-io -c 'write 0 192k' -c 'write -z 64k 64k' a >/dev/null; s=\"'event':'write_aio'\"; qemu-io -c 'write -P 1 0 192k' \
     \"json:{'driver':'qcow2','file':{'driver':'blkdebug','image.filename':'a','set-state':[{$s,'new_state':2}],'inject-error':[{$s,'state':2}]}}\" | grep -v ops; \
     qemu-io -c 'read -P 1 0 192k' a | head -1; qemu-img map a | wc -l",
    "qemu-img create -q -f qcow2 a 64M; for at in 0 2M 4M 32M; do qemu-io -c \"write $at 1M\" a >/dev/null; done; qemu-img create -q -f qcow2 e 1M; \
     qemu-img convert -p -O qcow2 a b | tr '\\r' '\\n'; for o in '-O qcow2' '-S 0 -O raw'; do qemu-img convert -p $o e b | tr '\\r' '\\n'; done",
    "qemu-img create -q -f qcow2 a 4M; qemu-io -c 'write -P 1 0 4M' a >/dev/null; r=\"'event':'none','errno':5,'iotype'\"; \
     qemu-img convert --salvage -O raw \"json:{'driver':'blkdebug','image':{'driver':'qcow2','file':{'driver':'file','filename':'a'}},'inject-error':[\
     {$r:'block-status','sector':2064},{$r:'read','sector':2064},{$r:'read','sector':4000},{$r:'read','sector':4001}]}\" b 2>&1 | grep 'error while reading'; \
     qemu-io -r -f raw -c 'read -P 0 1032k 512' -c 'read -P 0 2000k 1k' -c 'read -P 1 2001k 2095k' b | grep -v ops",
    "truncate -s 1M r; for d in file host_device host_cdrom; do for o in 'open' 'open -r'; do qemu-io -c \"$o -o driver=$d,filename=/dev/null,locking=off\" 2>/dev/null; \
     echo $?; qemu-io -c \"$o -o driver=$d,filename=r\" 2>/dev/null; echo $?; done; done; qemu-img info -U /dev/null | head -3",
    "qemu-img create -q -f qcow2 a 30M; qemu-io -c 'write 20M 10M' -c 'write 0 10M' -c 'write 10M 10M' a >/dev/null; qemu-img resize -q --shrink a 15M; \
     test $(du -k a | cut -f 1) -lt 16000; echo $?; qemu-img check a | head -1",
    // A colon before the first slash ends a protocol, also of a file that is there.
    "qemu-img create -q -f qcow2 ./a:b 1M; for n in a:b :x raw:x a=b:c host_device:./a:b file:; do for c in 'create -f qcow2 N 1M' 'create -f raw N 1M' 'info N' 'check N' 'map N' \
     'snapshot -l N' 'resize N 2M' 'bitmap --add N x' 'measure -O raw N' 'amend -o lazy_refcounts=on N' 'convert -O raw ./a:b N' 'convert -n -O raw ./a:b N' \
     'convert -O raw N d' 'compare N ./a:b' 'dd if=N of=d' 'dd if=./a:b of=N' 'rebase -b N -F raw ./a:b' 'commit N' 'create -f qcow2 -b N -F raw d 1M' \
     'create -u -f qcow2 -b N -F raw d 1M'; do qemu-img ${c/N/$n} >/dev/null 2>&1; echo $n $c $?; done; qemu-io -c 'read 0 64k' $n >/dev/null 2>&1; echo $?; done; ls; \
     qemu-img info file:a:b | head -1; qemu-img create -f qcow2 json:{} 1M 2>/dev/null; echo $?",
    // CloudStack looks for these words: what has gone already is deleted.
    "qemu-img create -q -f qcow2 a 1M; for w in a '--image-opts driver=qcow2,file.filename=a'; do qemu-img snapshot -d s $w 2>&1 | grep -c 'snapshot not found'; done",
    // Of equal options the last counts, wherever options stand; a switch alone is on, with "no" before it off.
    "qemu-img create -q -f qcow2 n 1M; qemu-img create -q -f qcow2 m 1M; o=driver=raw,file.filename=zz,driver=qcow2,file.filename; qemu-io --image-opts -c length $o=n; \
     qemu-img info --image-opts $o=n | head -2; qemu-img convert -n --target-image-opts n $o=m,lazy-refcounts; echo $?; qemu-nbd --image-opts $o=n -t -k $PWD/s --fork --pid-file p; \
     echo $?; kill $(cat p); qemu-storage-daemon --blockdev $o=m,node-name=x,file.driver=null-co,file.driver=file --pidfile q --daemonize; echo $?; kill $(cat q)",
    "qemu-img create -q -f qcow2 n 1M; for o in read-only noread-only force-share; do d=driver=qcow2,$o,file.filename=n; \
     qemu-io -r --image-opts -c length $d 2>/dev/null; qemu-img info --image-opts $d 2>/dev/null | head -1; done; qemu-io -c 'reopen -o l2-cache-size=1M,l2-cache-size=2M' \
     -c 'reopen -o lazy-refcounts' -c length n 2>/dev/null; qemu-io -c 'open -o nolazy-refcounts n' -c length 2>/dev/null",
    "qemu-img create -q -f qcow2 n 1M; for o in lazy_refcounts nolazy_refcounts lazy_refcounts=off,lazy_refcounts; do qemu-img amend -o $o n; echo $?; \
     qemu-img info n | grep lazy; done; qemu-storage-daemon --chardev socket,id=c,path=$PWD/m,server,nowait --monitor c --pidfile p --daemonize; echo $?; kill $(cat p)",
    // Numbers are what C's strtol reads.
    "qemu-img create -q -f qcow2 n 1M; for i in ' 4' 0x4 010 +4 4x -4 ''; do qemu-img bench -c \"$i\" n >/dev/null 2>&1; echo $?; qemu-img bench -c 1 -d \"$i\" n >/dev/null 2>&1; \
     echo $?; qemu-img convert -m \"$i\" n o 2>/dev/null; echo $?; qemu-img create -f qcow2 -o \"refcount_bits=$i\" p 1M 2>/dev/null; echo $?; done; \
     qemu-img bench -w -c 8 -d 2 --pattern=0x41 --flush-interval=0x2 n >/dev/null; echo $?; qemu-io -c 'read -P 0x41 0 0x8000' n | head -1",
    "qemu-img create -q -f qcow2 b 1M; qemu-img create -q -f qcow2 -b b -F qcow2 t; qemu-img convert -n -F qcow2 -O qcow2 b t; echo $?; \
     qemu-img create -f qcow2 -b null-co:// -F null-co n 1M; qemu-io -c 'read 0 64k' n | head -1; qemu-img info n | grep '^backing'",
    // Tables of snapshots: extra data that reaches over the end of the file, and two snapshots with one L1 table.
    "f() { echo $((0x$(od -An -tx1 -j$1 -N$2 s | tr -d ' '))); }; qemu-img create -q -f qcow2 s 4M; qemu-io -c 'write 1M 1M' s >/dev/null; for i in 1 2 3; do qemu-img snapshot -c s$i s; \
     done; printf '\\x00\\x00\\x07\\xd0' | dd of=s bs=1 seek=$(($(f 64 8) + 36)) conv=notrunc status=none; \
     for r in '' '-r all' ''; do qemu-img check $r s >/dev/null 2>&1; echo $?; done; qemu-img snapshot -l s | wc -l; qemu-io -r -c 'read 1M 1M' s | head -1",
    "f() { echo $((0x$(od -An -tx1 -j$1 -N$2 s | tr -d ' '))); }; qemu-img create -q -f qcow2 s 4M; qemu-io -c 'write -P 5 1M 1M' s >/dev/null; qemu-img snapshot -c s1 s; \
     qemu-img snapshot -c s2 s; o=$(f 64 8); n=$((o + (40 + $(f $((o + 36)) 4) + $(f $((o + 12)) 2) + $(f $((o + 14)) 2) + 7) / 8 * 8)); \
     dd if=s of=s bs=1 skip=$o seek=$n count=12 conv=notrunc status=none; for r in '' '-r all' ''; do qemu-img check $r s >/dev/null 2>&1; echo $?; done; \
     for i in 1 2; do qemu-img snapshot -d s$i s; qemu-img check s | head -1; done; qemu-io -r -c 'read -P 5 1M 1M' s | head -1",
    // What bitmaps take when the image is closed lies in the room that the writer had ahead, not behind it.
    "for c in 64k 4k; do qemu-img create -q -f qcow2 -o cluster_size=$c a 1G; qemu-img bitmap --add a x; qemu-io -c 'write 0 64k' a >/dev/null; for i in 1 2; do \
     e=$(qemu-img check --output json a | sed -n 's/.*image-end-offset.: \\([0-9]*\\).*/\\1/p'); echo $((e >> 20)) $(($(stat -c %s a) >> 20)); qemu-io -c 'write 64k 128k' a >/dev/null; \
     done; done; qemu-img check a | head -1",
];

#[test]
fn lines_of_callers_have_the_results_of_qemus_programs() {
    let names = ours("qemu-img");
    let names = names.parent().expect("a directory").to_string_lossy().into_owned();
    let path = std::env::var("PATH").expect("there is one");
    let mut differences = String::new();
    for script in SCRIPTS {
        let run = |path: String| {
            let scratch = Scratch::new();
            let run = Run::new("bash")
                .args(["-c", script])
                .env("PATH", &path)
                .current_dir(scratch.path())
                .outcome();
            assert!(!run.panicked() && !run.timed_out, "{script}: {run}");
            (run.stdout.replace(&*scratch.path().to_string_lossy(), "DIR"), run.stderr)
        };
        let (our_out, our_err) = run(format!("{names}:{path}"));
        let (their_out, _) = run(path.clone());
        if our_out != their_out {
            differences += &format!("{script}\n{our_out}{our_err}but QEMU:\n{their_out}\n");
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

/// Options that QEMU has since 10.1: older programs do not know them, so results are compared with what they mean.
#[test]
fn options_of_newer_versions_do_what_older_names_do() {
    for (newer, older) in [
        ("create -f qcow2 -b base -B qcow2 new", "create -f qcow2 -b base -F qcow2 new"),
        ("convert -O qcow2 --snapshot s --rate-limit 1G snap new", "convert -O qcow2 -l s -r 1G snap new"),
        (
            "convert -O qcow2 --target-format-options cluster_size=4k base new",
            "convert -O qcow2 -o cluster_size=4k base new",
        ),
        (
            "create -f qcow2 -o data_file=raw,keep_data_file=on,data_file_raw=on new 1M",
            "create -f qcow2 new 1M",
        ),
    ] {
        let scratch = Scratch::new();
        let sh = |script: &str| drop(Run::new("bash").args(["-c", script]).current_dir(scratch.path()).ok());
        sh(
            "qemu-img create -q -f qcow2 base 1M; cp base snap; qemu-io -c 'write -P 7 0 64k' snap; qemu-img snapshot -c s snap; \
            qemu-io -c 'write -P 8 0 64k' snap; head -c 1M /dev/zero | tr '\\0' x > raw",
        );
        let shown = |words: &str| {
            drop(Run::new(ours("qemu-img")).args(words.split(' ')).current_dir(scratch.path()).ok());
            let mut map = Command::new("qemu-img");
            let map = map.args(["map", "--output=json", "new"]).current_dir(scratch.path());
            let output = map.output().expect("QEMU's program");
            assert!(output.status.success(), "{words}");
            std::fs::remove_file(scratch.file("new")).expect("it was made");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let (newer_map, older_map) = (shown(newer), shown(older));
        if newer.contains("keep_data_file") {
            // What the file holds is the disk: nothing of it was changed.
            assert!(std::fs::read(scratch.file("raw")).expect("it is there") == vec![b'x'; 1 << 20]);
        } else {
            assert_eq!(newer_map, older_map, "{newer}");
        }
    }
}

#[test]
fn all_bitmaps_are_removed_at_once() {
    let scratch = Scratch::new();
    let img =
        |words: &str| Run::new(ours("qemu-img")).args(words.split(' ')).current_dir(scratch.path()).ok();
    drop(img("create -q -f qcow2 a 1M"));
    drop(img("bitmap --add a one"));
    drop(img("bitmap --add --disable a two"));
    drop(img("bitmap --remove-all a"));
    assert!(!img("info a").contains("bitmaps"));
    drop(img("bitmap --remove-all a"));
    drop(Run::new("qemu-img").args(["check", "a"]).current_dir(scratch.path()).ok());
    let refused = Run::new(ours("qemu-img")).args(["bitmap", "--remove-all", "--add", "a"]);
    assert_eq!(refused.current_dir(scratch.path()).outcome().status.code(), Some(1));
}

#[test]
fn snapshots_and_shrinking_need_no_backing_file() {
    let scratch = Scratch::new();
    let run = |program: &str, words: &[&str]| Run::new(program).args(words).current_dir(scratch.path()).ok();
    drop(run("qemu-img", &["create", "-q", "-f", "qcow2", "base", "64M"]));
    drop(run("qemu-io", &["-c", "write -P 7 0 64M", "base"]));
    drop(run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base", "-F", "qcow2", "top", "1000k"]));
    std::fs::rename(scratch.file("base"), scratch.file("elsewhere")).expect("it is there");
    let img = ours("qemu-img");
    let img = img.to_str().expect("UTF-8");
    drop(run(img, &["snapshot", "-c", "one", "top"]));
    drop(run(img, &["snapshot", "-c", "two", "top"]));
    drop(run(img, &["snapshot", "-d", "one", "top"]));
    let list = run(img, &["snapshot", "-l", "top"]);
    assert!(list.contains("two") && !list.contains("one"), "{list}");
    drop(run(img, &["snapshot", "-a", "two", "top"]));
    drop(run(img, &["snapshot", "-d", "two", "top"]));
    drop(run(img, &["resize", "--shrink", "top", "500k"]));
    let grow = || Run::new(img).args(["resize", "top", "1000k"]).current_dir(scratch.path());
    // What a longer one has behind the end is to be hidden.
    let refused = grow().fails();
    assert!(refused.contains("base"), "{refused}");
    std::fs::rename(scratch.file("elsewhere"), scratch.file("base")).expect("it is there");
    drop(run("qemu-img", &["check", "top"]));
    drop(run("qemu-io", &["-c", "read -P 7 0 500k", "top"]));
    drop(grow().ok());
    drop(run("qemu-img", &["check", "top"]));
    drop(run("qemu-io", &["-c", "read -P 7 0 500k", "-c", "read -P 0 500k 500k", "top"]));
}
