//! Hosts with a network of their own: network namespaces that can drop all packets to each other,
//! each direction by itself.
//!
//! Each namespace lives as long as the processes in it. The first of them ends with this value, and
//! also if the harness dies, and the interfaces go with the namespaces: nothing has to be removed.
//! No interface outside of them is touched. Sockets in the file system are reached from everywhere.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};

use keyfall_testing::server::redis_server;

/// A host, from 1.
pub(crate) type Place = u8;

/// A hardware address that no host has.
const NOBODY: Place = 0;

pub(crate) struct Hosts {
    hosts: Vec<Namespace>,
    /// Holds the bridge between all hosts.
    _hub: Namespace,
}

/// A network namespace, and the process that holds it.
struct Namespace {
    holder: Child,
    /// The holder ends when this is closed.
    _open: Option<ChildStdin>,
}

impl Hosts {
    /// The reason why this machine has no such hosts, if it has none.
    pub(crate) fn are_refused() -> Option<String> {
        Hosts::start(2).err()
    }

    /// Makes so many hosts, all of which reach each other.
    pub(crate) fn start(count: Place) -> Result<Self, String> {
        let hub = Namespace::new()?;
        hub.ip("link add hub type bridge\nlink set hub up\n")?;
        let mut hosts = Vec::new();
        for place in 1..=count {
            let host = Namespace::new()?;
            hub.ip(&format!(
                "link add port{place} type veth peer name eth0 netns {}\n\
                 link set port{place} master hub up\n",
                host.holder.id(),
            ))?;
            host.ip(&format!(
                "link set eth0 address {}\naddr add {}/24 dev eth0\n\
                 link set eth0 up\nlink set lo up\n",
                hardware(place),
                Hosts::address(place),
            ))?;
            hosts.push(host);
        }
        let it = Hosts { hosts, _hub: hub };
        it.join()?;
        Ok(it)
    }

    pub(crate) fn address(place: Place) -> String {
        format!("10.77.0.{place}")
    }

    /// From now on no packet gets from these hosts to the others; nobody is told.
    pub(crate) fn cut(
        &self,
        from: &[Place],
        to: impl IntoIterator<Item = Place> + Clone,
    ) -> Result<(), String> {
        for from in from {
            let to = to.clone().into_iter();
            self.send(*from, to.map(|to| (to, NOBODY)))?;
        }
        Ok(())
    }

    /// Ends all cuts.
    pub(crate) fn join(&self) -> Result<(), String> {
        for from in self.all() {
            let others = self.all().filter(|to| *to != from);
            self.send(from, others.map(|to| (to, to)))?;
        }
        Ok(())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Place> + Clone + use<> {
        1..=Place::try_from(self.hosts.len()).expect("they are few")
    }

    /// Sets which hardware gets the packets from a host to the address of another. What nobody has
    /// is dropped by the bridge. No host asks for such an address, and none learns one.
    fn send(&self, from: Place, to: impl Iterator<Item = (Place, Place)>) -> Result<(), String> {
        let rules = to.map(|(to, who)| {
            let (address, hardware) = (Hosts::address(to), hardware(who));
            format!("neigh replace {address} lladdr {hardware} nud permanent dev eth0\n")
        });
        self.host(from).ip(&rules.collect::<String>())
    }

    fn host(&self, place: Place) -> &Namespace {
        &self.hosts[usize::from(place) - 1]
    }

    /// The same command on a host.
    pub(crate) fn on(&self, place: Place, command: &Command) -> Command {
        let mut there = Command::new("nsenter");
        there.arg(self.host(place).option());
        there.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => there.env(name, value),
                None => there.env_remove(name),
            };
        }
        there
    }

    /// A program that starts `redis-server` on a host.
    pub(crate) fn redis_server(&self, place: Place, dir: &Path) -> Result<PathBuf, String> {
        let program = dir.join(format!("redis-server-{place}"));
        let (enter, server) = (self.host(place).option(), redis_server());
        let text = format!("#!/bin/sh\nexec nsenter {enter} '{server}' \"$@\"\n");
        let written = std::fs::write(&program, text);
        let mode = std::fs::Permissions::from_mode(0o755);
        written
            .and_then(|()| std::fs::set_permissions(&program, mode))
            .map_err(|error| format!("{}: {error}", program.display()))?;
        Ok(program)
    }
}

fn hardware(place: Place) -> String {
    format!("02:00:00:00:00:{place:02x}")
}

impl Namespace {
    fn new() -> Result<Self, String> {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "cat"]).stderr(Stdio::piped());
        let unshare = unshare.stdin(Stdio::piped()).stdout(Stdio::piped());
        let holder = unshare
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let mut it = Namespace {
            holder,
            _open: None,
        };
        let mut stdin = it.holder.stdin.take().expect("it is piped");
        let mut stdout = it.holder.stdout.take().expect("it is piped");
        // `cat` answers from within the namespace.
        let mut told = [0];
        let answered = stdin
            .write_all(b"!")
            .and_then(|()| stdout.read_exact(&mut told));
        if answered.is_err() {
            let mut why = String::new();
            let stderr = it.holder.stderr.take().expect("it is piped");
            let _ = { stderr }.read_to_string(&mut why);
            return Err(format!("no network namespaces: {}", why.trim()));
        }
        it._open = Some(stdin);
        Ok(it)
    }

    /// The option by which `nsenter` finds it.
    fn option(&self) -> String {
        format!("--net=/proc/{}/ns/net", self.holder.id())
    }

    /// Gives these commands to `ip`, one a line.
    fn ip(&self, lines: &str) -> Result<(), String> {
        let mut ip = Command::new("nsenter");
        ip.arg(self.option()).args(["ip", "-batch", "-"]);
        let ended = told(&mut ip, lines).map_err(|error| format!("nsenter: {error}"))?;
        match ended.status.success() {
            true => Ok(()),
            false => Err(format!("ip: {}", String::from_utf8_lossy(&ended.stderr))),
        }
    }
}

/// Runs a command with this input.
fn told(command: &mut Command, lines: &str) -> io::Result<Output> {
    let command = command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn()?;
    let mut stdin = process.stdin.take().expect("it is piped");
    stdin.write_all(lines.as_bytes())?;
    drop(stdin);
    process.wait_with_output()
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
