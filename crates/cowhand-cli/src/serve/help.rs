//! `cowhand serve --help`: the options that are used most, on one screen. `--help-all` has every option with its whole text.

use clap::Arg;

/// Options on the screen, by their names in [`super::args::Args`], each in one line.
const SHORT: [(&str, &str); 16] = [
    ("create", "Create each missing image first, as a qcow2 disk of SIZE"),
    ("overlay", "Serve IMAGE over DRIVE, which is only read"),
    ("format", "qcow2 or raw [default: what the first bytes say]"),
    ("read_only", "Refuse every write"),
    ("allow_path", "Let names in images lead under DIR (also: /etc/cowhand/policy.d)"),
    ("export", "Name of the export, if there is one DRIVE"),
    ("socket", "Listen for NBD on a Unix socket [default: a private one]"),
    ("listen", "Listen for NBD on TCP; PORT alone is on 127.0.0.1"),
    ("vhost_user_blk", "Give a virtual machine the disk over vhost-user-blk"),
    ("fuse", "Mount the disk as a regular file over FILE"),
    ("ublk", "Make the disk the block device /dev/ublkbN (root)"),
    ("qmp", "Listen for commands (QMP); DRIVE is optional then"),
    ("metrics", "Serve figures for Prometheus"),
    ("config", "Read options from a TOML file"),
    ("log", "What to log, such as info,qcow2=debug [default: warn]"),
    ("quiet", "Print no lines to paste"),
];

/// What stands under the short help.
pub const AFTER: &str = "\
A DRIVE is a path, nbd://HOST/EXPORT, s3://BUCKET/KEY, https://HOST/FILE, or
file=disk.qcow2,cache=none,discard=unmap: --drive-options lists all.
--help-all has every option: names, sandbox, upgrade, TLS, passwords.

  cowhand serve --create 20G disk.qcow2
  cowhand serve --vhost-user-blk vm1.vhost --qmp vm1.qmp file=disk.qcow2,cache=none";

/// `argument` with its line for the screen, or only in the long help.
pub fn arranged(argument: Arg) -> Arg {
    let id = argument.get_id().as_str().to_owned();
    if matches!(id.as_str(), "help" | "help_all" | "drives") {
        return argument;
    }
    match SHORT.iter().find(|(name, _)| *name == id) {
        Some((_, line)) => {
            let long = argument
                .get_long_help()
                .or(argument.get_help())
                .map_or_else(String::new, ToString::to_string);
            argument.help(*line).long_help(long)
        }
        None => argument.hide_short_help(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    /// Lines of a terminal that is not tiny.
    const SCREEN_LINES: usize = 50;

    #[test]
    fn the_help_fits_on_a_screen_and_the_rest_is_in_help_all() {
        let mut cli = cli::command();
        cli.build();
        let serve = cli.find_subcommand_mut("serve").expect("it is there");
        let short = serve.render_help().to_string();
        assert!(short.lines().count() <= SCREEN_LINES, "{} lines\n{short}", short.lines().count());
        let long = serve.render_long_help().to_string();
        for (name, line) in SHORT {
            let option = format!("--{}", name.replace('_', "-"));
            assert!(short.contains(&option) && short.contains(line), "{option}\n{short}");
        }
        for argument in serve.get_arguments().filter_map(Arg::get_long) {
            assert!(long.contains(&format!("--{argument}")), "{argument}");
        }
        assert!(long.contains("an existing one is never touched"), "{long}");
    }
}
