//! What the server says of itself.

/// What a server has used since it started.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Usage {
    /// CPU time, in µs.
    pub(super) cpu_us: f64,
    /// Commands, those that scripts call included.
    pub(super) commands: f64,
    /// What went over its connections, to and fro, in bytes.
    pub(super) bytes: f64,
    /// Memory in use just now, in bytes.
    pub(super) memory: f64,
}

/// Which server it is.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) version: String,
}

impl Usage {
    /// From the answer to `INFO all`.
    pub(super) fn read(info: &str) -> Self {
        let number = |name| field(info, name).and_then(|text| text.parse::<f64>().ok());
        let cpu = ["used_cpu_user", "used_cpu_sys"].map(|name| number(name).unwrap_or(f64::NAN));
        let stats = info.lines().filter(|line| line.starts_with("cmdstat_"));
        let calls = stats.filter_map(|line| {
            let (_, rest) = line.split_once(":calls=")?;
            rest.split(',').next()?.parse::<f64>().ok()
        });
        Usage {
            cpu_us: (cpu[0] + cpu[1]) * 1e6,
            commands: calls.sum(),
            bytes: ["total_net_input_bytes", "total_net_output_bytes"]
                .map(|name| number(name).unwrap_or(f64::NAN))
                .iter()
                .sum(),
            memory: number("used_memory").unwrap_or(f64::NAN),
        }
    }

    /// What was used since then.
    pub(super) fn since(self, then: Usage) -> Self {
        Usage {
            cpu_us: self.cpu_us - then.cpu_us,
            commands: self.commands - then.commands,
            bytes: self.bytes - then.bytes,
            memory: self.memory - then.memory,
        }
    }
}

impl Server {
    /// From the answer to `INFO all`.
    pub(super) fn read(info: &str) -> Self {
        let text = |name| field(info, name).map(str::to_owned);
        // Valkey calls itself a Redis of an old version, too.
        let name = text("server_name").unwrap_or_else(|| "redis".into());
        let version = text(&format!("{name}_version")).or_else(|| text("redis_version"));
        Server {
            version: version.unwrap_or_default(),
            name,
        }
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\n\
        valkey_version:8.1.8\r\n# Stats\r\ntotal_net_input_bytes:30\r\n\
        total_net_output_bytes:12\r\n# Memory\r\nused_memory:2000\r\nused_memory_human:2K\r\n\
        # CPU\r\nused_cpu_sys:0.25\r\nused_cpu_user:1.5\r\nused_cpu_sys_children:9\r\n\
        # Commandstats\r\ncmdstat_zadd:calls=7,usec=20,usec_per_call=2.86\r\n\
        cmdstat_config|get:calls=3,usec=9\r\n";

    #[test]
    fn what_was_used_is_read_from_info() {
        let used = Usage {
            cpu_us: 1.75e6,
            commands: 10.0,
            bytes: 42.0,
            memory: 2000.0,
        };
        assert_eq!(Usage::read(INFO), used);
        assert_eq!(used.since(used).commands, 0.0);
    }

    #[test]
    fn a_server_goes_by_its_own_name() {
        let server = Server::read(INFO);
        assert_eq!((&*server.name, &*server.version), ("valkey", "8.1.8"));
        let server = Server::read("redis_version:7.0.15\r\n");
        assert_eq!((&*server.name, &*server.version), ("redis", "7.0.15"));
    }
}
