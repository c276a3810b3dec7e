//! The proxies that are named, and the caller's address that they tell by the header `Forwarded` (RFC 7239).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use axum::http::{HeaderMap, header};
use fencepost_core::{Error, Result};

/// The addresses of proxies: one address, or a network such as `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// How many bits from the left an address has to share with it.
    bits: u32,
}

impl FromStr for Network {
    type Err = Error;

    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a text that is neither an address nor a network.
    fn from_str(text: &str) -> Result<Network> {
        let wrong = || Error::invalid(format!("`{text}` is no address and no network such as 10.0.0.0/8"));
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most {
            return Err(wrong());
        }
        Ok(Network { address, bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl Network {
    fn contains(&self, address: IpAddr) -> bool {
        let from_the_left = |address| match address {
            IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
            IpAddr::V6(address) => u128::from(address),
        };
        let differ = from_the_left(self.address) ^ from_the_left(address);
        self.address.is_ipv4() == address.is_ipv4() && differ.leading_zeros() >= self.bits
    }
}

/// Returns whether a proxy has this address.
pub(crate) fn contain(proxies: &[Network], address: IpAddr) -> bool {
    proxies.iter().any(|network| network.contains(address))
}

/// Returns the address of the caller of a request that came from the proxy `from`. Each proxy adds the address that it was asked from, so
/// only what stands to the right of the first address that is no proxy is the word of a proxy. If a proxy adds no address, or the line
/// breaks a rule, the caller counts as that proxy.
pub(crate) fn caller(headers: &HeaderMap, proxies: &[Network], from: IpAddr) -> IpAddr {
    let mut address = from;
    for line in headers.get_all(header::FORWARDED).iter().rev() {
        let Some(hops) = line.to_str().ok().and_then(hops) else { return address };
        for hop in hops.into_iter().rev() {
            let Some(hop) = hop else { return address };
            address = hop;
            if !contain(proxies, hop) {
                return address;
            }
        }
    }
    address
}

/// Reads the addresses of a line of the header; `None` for a hop that hides its address. A line that breaks a rule gives nothing: a caller
/// could begin a text in quotation marks that swallows what the proxy adds.
fn hops(line: &str) -> Option<Vec<Option<IpAddr>>> {
    split(line, ',')?.into_iter().map(hop).collect()
}

/// Reads the address of one hop: `for=192.0.2.60;proto=http`.
fn hop(element: &str) -> Option<Option<IpAddr>> {
    let mut address = None;
    for pair in split(element, ';')? {
        let (name, value) = pair.split_once('=')?;
        let value = match value.strip_prefix('"') {
            Some(rest) => {
                let inner = rest.strip_suffix('"')?;
                // An address has neither of them.
                if inner.contains(['"', '\\']) {
                    return None;
                }
                inner
            }
            None if value.contains('"') => return None,
            None => value,
        };
        if name.eq_ignore_ascii_case("for") && address.replace(node(value)).is_some() {
            return None;
        }
    }
    Some(address.flatten())
}

/// Reads an address with or without a port: `192.0.2.60`, `192.0.2.60:4711`, `[2001:db8::1]` or `[2001:db8::1]:4711`. An address without
/// its brackets is what proxies write that have only a variable for it.
fn node(text: &str) -> Option<IpAddr> {
    let address: IpAddr = match text.parse::<SocketAddr>() {
        Ok(address) => address.ip(),
        Err(_) => match text.strip_prefix('[') {
            Some(rest) => IpAddr::V6(rest.strip_suffix(']')?.parse().ok()?),
            None => text.parse().ok()?,
        },
    };
    Some(address.to_canonical())
}

/// Splits a text at a mark outside of quotation marks, which have to be closed.
fn split(text: &str, mark: char) -> Option<Vec<&str>> {
    let mut is_quoted = false;
    let parts: Vec<&str> = text
        .split(|character| {
            is_quoted ^= character == '"';
            character == mark && !is_quoted
        })
        .map(str::trim)
        .collect();
    (!is_quoted).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_contains_its_addresses() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("0.0.0.0/0", "255.1.1.1", "::1"),
            ("::1", "::1", "::2"),
        ] {
            let network: Network = network.parse().unwrap();
            assert!(network.contains(address(inside)), "{network} {inside}");
            assert!(!network.contains(address(outside)), "{network} {outside}");
        }
        for wrong in
            ["", "10.0.0.0/33", "fd00::/129", "proxy.example", "10.0.0.0/", "10.0.0/8", "10.0.0.0/-1"]
        {
            let error = wrong.parse::<Network>().unwrap_err();
            assert!(error.is_invalid() && error.to_string().contains(wrong), "{error}");
        }
    }

    #[test]
    fn the_caller_is_the_first_address_from_the_right_that_is_no_proxy() {
        let proxies = ["10.0.0.0/8", "fd00::/8"].map(|text| text.parse().unwrap());
        let from = address("10.0.0.1");
        let told = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::FORWARDED, line.parse().unwrap());
            }
            caller(&headers, &proxies, from).to_string()
        };
        for (lines, expected) in [
            (&[][..], "10.0.0.1"),
            (&["for=192.0.2.60"], "192.0.2.60"),
            (&["For=192.0.2.60:4711;proto=https;by=10.0.0.1"], "192.0.2.60"),
            (&["proto=https;for=\"[2001:db8::1]:4711\""], "2001:db8::1"),
            (&["for=\"[2001:db8::1]\""], "2001:db8::1"),
            (&["for=\"2001:db8::1\""], "2001:db8::1"),
            (&["for=\"[::ffff:192.0.2.60]\""], "192.0.2.60"),
            // Through two proxies.
            (&["for=192.0.2.60, for=10.0.0.2"], "192.0.2.60"),
            (&["for=192.0.2.60", "for=\"[fd00::2]\""], "192.0.2.60"),
            (&["for=10.0.0.3,for=10.0.0.2"], "10.0.0.3"),
            // What the caller itself has sent does not count.
            (&["for=198.51.100.1, for=192.0.2.60"], "192.0.2.60"),
            (&["for=198.51.100.1", "for=192.0.2.60"], "192.0.2.60"),
            // A proxy that hides the address.
            (&["for=198.51.100.1, for=unknown"], "10.0.0.1"),
            (&["for=198.51.100.1, for=_hidden"], "10.0.0.1"),
            (&["for=198.51.100.1, proto=https"], "10.0.0.1"),
            (&["for=198.51.100.1, for=_hidden, for=10.0.0.2"], "10.0.0.2"),
            // A text that swallows what the proxy adds.
            (&["for=198.51.100.1;x=\", for=192.0.2.60"], "10.0.0.1"),
            (&["for=198.51.100.1;x=\", for=\"[2001:db8::1]\""], "10.0.0.1"),
            (&["for=198.51.100.1;x=\"\\\", for=\"[2001:db8::1]\""], "10.0.0.1"),
            (&["for=198.51.100.1;x=a\", for=\"[2001:db8::1]\""], "10.0.0.1"),
            (&["for=198.51.100.1;x=\"", "for=192.0.2.60"], "192.0.2.60"),
            (&["for=198.51.100.1;for=192.0.2.60"], "10.0.0.1"),
            (&["", "for="], "10.0.0.1"),
        ] {
            assert_eq!(told(lines), expected, "{lines:?}");
        }
    }
}
