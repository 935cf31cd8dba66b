//! Parses quantities as people write them: `7.2mbit`, `60ms`, `64k`, `1%`.

/// Splits a number from its unit.
fn split(text: &str) -> Result<(f64, String), String> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number: f64 = text[..end]
        .parse()
        .map_err(|_| format!("{text:?} does not begin with a number"))?;
    Ok((number, text[end..].trim().to_ascii_lowercase()))
}

/// Parses bits per second: `7.2mbit`, `64kbit`, `1gbit`, or a bare number of bits.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor = match unit.trim_end_matches("/s") {
        "" | "bit" | "bps" => 1.0,
        "k" | "kbit" | "kbps" => 1e3,
        "m" | "mbit" | "mbps" => 1e6,
        "g" | "gbit" | "gbps" => 1e9,
        _ => {
            return Err(format!(
                "{unit:?} is no rate; use bit, kbit, mbit or gbit, as in 7.2mbit"
            ));
        }
    };
    let bits = number * factor;
    if (1.0..=1e12).contains(&bits) {
        Ok(bits as u64)
    } else {
        Err(format!("{text} is not between 1 bit/s and 1000 Gbit/s"))
    }
}

/// Parses a duration to nanoseconds: `60ms`, `200us`, `1.5s`, or a bare number of milliseconds.
pub fn parse_duration_ns(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor = match unit.as_str() {
        "us" => 1e3,
        "" | "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(format!("{unit:?} is no time; use us, ms or s, as in 60ms")),
    };
    if number * factor <= 3.6e12 {
        Ok((number * factor) as u64)
    } else {
        Err(format!("{text} is longer than an hour"))
    }
}

/// Parses bytes: `64k`, `1m`, or a bare number.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let (number, unit) = split(text)?;
    let factor = match unit.trim_end_matches(['b', 'i']) {
        "" => 1.0,
        "k" => 1024.0,
        "m" => 1048576.0,
        _ => return Err(format!("{unit:?} is no size; use k or m, as in 64k")),
    };
    Ok((number * factor) as usize)
}

/// Parses a share from 0 to 1: `1%` or `0.01`.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let (number, unit) = split(text)?;
    let share = match unit.as_str() {
        "" => number,
        "%" => number / 100.0,
        _ => return Err(format!("{unit:?} is no share; write 1% or 0.01")),
    };
    if share <= 1.0 {
        Ok(share)
    } else {
        Err(format!("{text} is more than everything; write 1% or 0.01"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_as_people_write_them() {
        assert_eq!(parse_rate("7.2mbit"), Ok(7_200_000));
        assert_eq!(parse_rate("64 kbit/s"), Ok(64_000));
        assert_eq!(parse_duration_ns("60ms"), Ok(60_000_000));
        assert_eq!(parse_duration_ns("1.5s"), Ok(1_500_000_000));
        assert_eq!(parse_bytes("64k"), Ok(65536));
        assert_eq!(parse_bytes("1MiB"), Ok(1 << 20));
        assert_eq!(parse_share("1%"), Ok(0.01));
        for bad in ["", "fast", "7parsec", "-1mbit", "0mbit"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
        assert!(parse_share("150%").is_err());
    }
}
