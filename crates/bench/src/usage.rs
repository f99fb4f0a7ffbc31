//! The usage and the version of a server, from its INFO.

/// The usage of one server since it started, or of several together. A field is NaN if INFO lacks
/// it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Usage {
    /// CPU time, in µs.
    pub(super) cpu_us: f64,
    /// Commands, including the commands inside scripts.
    pub(super) commands: f64,
    /// Calls of scripts among the commands.
    pub(super) scripts: f64,
    /// Bytes that clients sent, and bytes that clients received; without replicas.
    pub(super) bytes_in: f64,
    pub(super) bytes_out: f64,
    /// The length of the log of writes for replicas and disks, in bytes. Redis counts it only with
    /// a replica.
    pub(super) replicated: f64,
    /// Memory in use now, in bytes.
    pub(super) memory: f64,
}

/// The name and the version of a server.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Server {
    /// The number of servers.
    pub(super) count: usize,
    /// `redis` or `valkey`.
    pub(super) name: String,
    pub(super) version: String,
}

impl Usage {
    /// From the answer to `INFO all`.
    pub(super) fn read(info: &str) -> Self {
        let number = |name| field(info, name).and_then(|text| text.parse::<f64>().ok());
        let cpu = ["used_cpu_user", "used_cpu_sys"].map(|name| number(name).unwrap_or(f64::NAN));
        let calls = |name: &str| {
            let stats = info.lines().filter(|line| line.starts_with(name));
            let calls = stats.filter_map(|line| {
                let (_, rest) = line.split_once(":calls=")?;
                rest.split(',').next()?.parse::<f64>().ok()
            });
            calls.sum::<f64>()
        };
        let [received, sent] = ["total_net_input_bytes", "total_net_output_bytes"]
            .map(|name| number(name).unwrap_or(f64::NAN));
        // Since Redis counts the bytes to replicas, the total includes them.
        let sent = sent - number("total_net_repl_output_bytes").unwrap_or(0.0);
        Usage {
            cpu_us: (cpu[0] + cpu[1]) * 1e6,
            commands: calls("cmdstat_"),
            scripts: calls("cmdstat_eval"),
            bytes_in: received,
            bytes_out: sent,
            replicated: number("master_repl_offset").unwrap_or(f64::NAN),
            memory: number("used_memory").unwrap_or(f64::NAN),
        }
    }

    /// The usage of two servers together.
    pub(super) fn plus(self, other: Usage) -> Self {
        Usage {
            cpu_us: self.cpu_us + other.cpu_us,
            commands: self.commands + other.commands,
            scripts: self.scripts + other.scripts,
            bytes_in: self.bytes_in + other.bytes_in,
            bytes_out: self.bytes_out + other.bytes_out,
            replicated: self.replicated + other.replicated,
            memory: self.memory + other.memory,
        }
    }

    /// The usage since an earlier reading.
    pub(super) fn since(self, then: Usage) -> Self {
        Usage {
            cpu_us: self.cpu_us - then.cpu_us,
            commands: self.commands - then.commands,
            scripts: self.scripts - then.scripts,
            bytes_in: self.bytes_in - then.bytes_in,
            bytes_out: self.bytes_out - then.bytes_out,
            replicated: self.replicated - then.replicated,
            memory: self.memory - then.memory,
        }
    }
}

impl Server {
    /// From the answer to `INFO all`.
    pub(super) fn read(info: &str, count: usize) -> Self {
        let text = |name| field(info, name).map(str::to_owned);
        // Valkey also has the version of an old Redis that it is compatible with.
        let name = text("server_name").unwrap_or_else(|| "redis".into());
        let version = text(&format!("{name}_version")).or_else(|| text("redis_version"));
        Server {
            count,
            version: version.unwrap_or_default(),
            name,
        }
    }
}

/// A field of INFO.
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
        master_repl_offset:5\r\n# CPU\r\nused_cpu_sys:0.25\r\nused_cpu_user:1.5\r\nused_cpu_sys_children:9\r\n\
        # Commandstats\r\ncmdstat_zadd:calls=7,usec=20,usec_per_call=2.86\r\n\
        cmdstat_evalsha:calls=4,usec=2\r\ncmdstat_config|get:calls=3,usec=9\r\n";

    #[test]
    fn the_usage_is_read_from_info() {
        let used = Usage {
            cpu_us: 1.75e6,
            commands: 14.0,
            scripts: 4.0,
            bytes_in: 30.0,
            bytes_out: 12.0,
            replicated: 5.0,
            memory: 2000.0,
        };
        assert_eq!(Usage::read(INFO), used);
        assert_eq!(used.since(used), Usage::default());
        assert_eq!(used.plus(used).since(used), used);
    }

    #[test]
    fn a_server_goes_by_its_own_name() {
        let server = Server::read(INFO, 1);
        assert_eq!((&*server.name, &*server.version), ("valkey", "8.1.8"));
        let server = Server::read("redis_version:7.0.15\r\n", 1);
        assert_eq!((&*server.name, &*server.version), ("redis", "7.0.15"));
    }
}
