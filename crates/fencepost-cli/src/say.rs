//! Messages to people, on standard error, which may be a closed pipe or a full disk.

/// Says a line. If nobody can hear it the work goes on: a panic here would cost the program its grace.
macro_rules! say {
    ($($text:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{}\n", format_args!($($text)*)));
    }};
}
