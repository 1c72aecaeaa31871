//! Compiles the protocol with a Rust compiler of protobuf: no `protoc` to install.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["fedcipher/v1/engine.proto", "fedcipher/v1/authority.proto"];
    println!("cargo:rerun-if-changed=proto");
    let set = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().bytes(".").build_server(cfg!(feature = "server")).compile_fds(set)?;
    Ok(())
}
