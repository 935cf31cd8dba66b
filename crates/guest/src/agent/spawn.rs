//! Starts processes as `posix_spawn` does: without a copy of the agent's memory, which a fork would make only for `exec` to drop it.
//! Under emulation that copy is half of what it takes to start a small program.

use super::sys;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Starts a command with these streams as the leader of a session of its own, with the agent's rights. On any error nothing was
/// started.
pub(in crate::agent) fn start(command: &Command, streams: [BorrowedFd<'_>; 3]) -> io::Result<u32> {
    let text = |text: &OsStr| CString::new(text.as_bytes());
    let program = text(find(command)?.as_os_str())?;
    let mut arguments = vec![text(command.get_program())?];
    for argument in command.get_args() {
        arguments.push(text(argument)?);
    }
    let mut environment = Vec::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            let whole = [name.as_bytes(), b"=", value.as_bytes()].concat();
            environment.push(CString::new(whole)?);
        }
    }
    let directory = command.get_current_dir().unwrap_or(Path::new("/"));
    let directory = text(directory.as_os_str())?;
    let streams = streams.map(|stream| stream.as_raw_fd());
    sys::spawn(&program, &arguments, &environment, &directory, streams)
}

/// Returns where the command's program is: its name, or where the command's own PATH has it.
fn find(command: &Command) -> io::Result<PathBuf> {
    let name = command.get_program();
    if name.as_bytes().contains(&b'/') {
        return Ok(name.into());
    }
    let path = command.get_envs().find(|(known, _)| *known == "PATH");
    let path = path.and_then(|(_, value)| value).unwrap_or_default();
    let runs = |program: &PathBuf| {
        std::fs::metadata(program).is_ok_and(|found| found.is_file())
            && rustix::fs::access(program, rustix::fs::Access::EXEC_OK).is_ok()
    };
    let mut places = std::env::split_paths(path).map(|dir| dir.join(name));
    let found = places.find(|program| program.is_absolute() && runs(program));
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    /// Runs a command with some input, and returns its output.
    fn output(command: &Command, input: &str) -> String {
        let (theirs, ours) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let (out, their_out) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let pid = start(
            command,
            [theirs.as_fd(), their_out.as_fd(), their_out.as_fd()],
        )
        .unwrap();
        drop((theirs, their_out));
        File::from(ours).write_all(input.as_bytes()).unwrap();
        let mut said = String::new();
        File::from(out).read_to_string(&mut said).unwrap();
        let pid = rustix::process::Pid::from_raw(pid as i32);
        rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap();
        said
    }

    #[test]
    fn a_command_has_its_words_variables_directory_and_streams_and_a_session() {
        let mut command = Command::new("sh");
        command.env_clear().env("PATH", "/none:/usr/bin:/bin");
        command.env("A", "b c").current_dir("/usr");
        command.args([
            "-c",
            "pwd; echo \"$A $1\"; cat; cut -d' ' -f6 /proc/$$/stat; echo $$",
            "x",
            "y z",
        ]);
        let said = output(&command, "in\n");
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[..3], ["/usr", "b c y z", "in"], "{said}");
        assert_eq!(lines[3], lines[4], "it leads its session");
    }

    #[test]
    fn what_cannot_be_started_is_an_error() {
        let mut command = Command::new("no-such-program");
        command.env("PATH", "/usr/bin:/bin");
        let null = File::open("/dev/null").unwrap();
        let streams = [null.as_fd(); 3];
        let error = start(&command, streams).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let error = start(&Command::new("/etc/passwd"), streams).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let mut command = Command::new("/bin/true");
        command.current_dir("/no/such/directory");
        let error = start(&command, streams).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
