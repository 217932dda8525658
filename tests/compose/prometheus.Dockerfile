# A stand-in for prom/prometheus, for machines that reach no container registry: Debian's package, laid out likewise.
FROM python:3.11-slim-bookworm
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -qq prometheus \
 && rm -rf /var/lib/apt/lists/* \
 && install --directory --owner nobody --group nogroup /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
