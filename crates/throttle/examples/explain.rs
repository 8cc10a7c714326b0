//! What limits mean: `cargo run -p cowhand-throttle --example explain -- iops=100 iops_max=2000 iops_max_length=60`

use throttle::{Options, Setting, explain};

fn main() -> Result<(), String> {
    let mut options = Options::new();
    for argument in std::env::args().skip(1) {
        let (name, value) = argument.split_once('=').ok_or("arguments are NAME=NUMBER")?;
        let number = value.parse().map_err(|error| format!("{name}: {error}"));
        match Setting::from_name(name) {
            Some(Setting::Limit(parameter)) => {
                options.set(parameter, number?);
            }
            Some(Setting::Group) => options.group = Some(value.to_owned()),
            Some(Setting::Weight) => {
                options.weight = Some(throttle::Weight::new(number?).map_err(|error| error.to_string())?);
            }
            None => return Err(format!("{name} is no throttling option")),
        }
    }
    print!("{}", explain(&options).map_err(|error| error.to_string())?.text());
    Ok(())
}
