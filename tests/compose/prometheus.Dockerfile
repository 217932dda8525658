# Replaces prom/prometheus on machines that cannot reach a container registry: Debian's package, in the same layout.
FROM python:3.11-slim-bookworm
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -qq prometheus \
 && rm -rf /var/lib/apt/lists/* \
 && install --directory --owner nobody --group nogroup /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
