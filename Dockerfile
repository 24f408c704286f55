# Paceline on a CPU. Without a daemon, .ci/container takes the same steps in a root of its own.
#     docker build --tag paceline .
#     docker run --rm --user "$(id -u)" --volume "$PWD:/work" paceline simulate two-workers --out out
FROM docker.io/library/debian:bookworm-slim
COPY . /source
RUN /source/.ci/install-in-debian /source && rm -r /source
ENV HOME=/tmp MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /work
ENTRYPOINT ["/opt/paceline/bin/paceline"]
