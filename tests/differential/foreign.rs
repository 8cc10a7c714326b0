//! Lines about images of other hypervisors, and about images that are made for them.

use super::fixtures::FOREIGN;
use super::trial::{Line, combined, same};

/// All of them.
pub fn lines() -> Vec<Line> {
    let names = FOREIGN.map(|(name, _)| name);
    let reads = [
        "info",
        "info --output=json",
        "map",
        "map --output=json",
        "measure -O qcow2",
        "measure --output=json -O raw",
        "compare data.qcow2",
        "compare -s other.qcow2",
    ];
    let strict = |line: String| match line.contains("-s ") && line.ends_with("disk.vhdx") {
        true => Line::known("Strict comparisons of vhdx images", line),
        false => Line::same(line),
    };
    let mut lines: Vec<Line> = combined(&[&reads, &names]).into_iter().map(strict).collect();
    let converts = [
        "convert -O raw",
        "convert -O qcow2",
        "convert -O qcow2 -c",
        "convert -p -O qcow2 -o cluster_size=4k",
    ];
    lines.extend(combined(&[&converts, &names, &["new.img"]]).into_iter().map(Line::same));
    for (name, format) in FOREIGN {
        for line in [
            format!("info -f {format} {name}"),
            format!("check -f {format} {name}"),
            format!("check --output=json {name}"),
            format!("convert -f {format} -O raw {name} new.img"),
            format!("convert -f raw -O qcow2 {name} new.img"),
            format!("dd -f {format} -O raw bs=64k count=10 skip=2 if={name} of=new.img"),
            format!("info --image-opts driver={format},file.filename={name}"),
            format!(
                "convert --image-opts -O raw driver={format},file.driver=file,file.filename={name} new.img"
            ),
            format!("info json:{{'driver':'{format}','file':{{'driver':'file','filename':'{name}'}}}}"),
            format!("create -f qcow2 -b {name} -F {format} new.qcow2"),
            format!("info -f qcow2 {name}"),
            format!("snapshot -l {name}"),
        ] {
            lines.push(Line::same(line));
        }
    }
    lines.extend(same(&[
        "convert -O vpc -o subformat=fixed,force_size=on data.qcow2 new.vpc",
        "convert -O vpc -o subformat=fixed,force_size data.qcow2 new.vpc",
        "convert -O vpc data.qcow2 new.vpc",
        "convert -O vmdk -o subformat=streamOptimized data.qcow2 new.vmdk",
        "convert -O vmdk data.qcow2 new.vmdk",
        "convert -O vmdk -o adapter_type=lsilogic,compat6=on data.qcow2 new.vmdk",
        "convert -O vmdk -o subformat=nonsense data.qcow2 new.vmdk",
        "convert -O vpc -o subformat=nonsense data.qcow2 new.vpc",
        "convert -O vpc -o nonsense=1 data.qcow2 new.vpc",
        "convert -f vmdk -O raw data.qcow2 new.img",
        "convert -f vhdx -O raw data.qcow2 new.img",
        "convert -f vdi -O raw text.txt new.img",
        "info -f vpc text.txt",
        "info -f qcow plain.raw",
        "create -f vpc new.vpc 4M",
        "create -f vpc -o subformat=fixed new.vpc 4M",
        "create -f vmdk new.vmdk 4M",
        "create -f vmdk -o subformat=streamOptimized new.vmdk 4M",
        "create -f vpc -o help",
    ]));
    lines
}
